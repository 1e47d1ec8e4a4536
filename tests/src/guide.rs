//! Reads the steps of a page of the documentation, so that tests do what it says.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};

/// A step of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Apply these manifests: a block in YAML.
    Apply(&'a str),
    /// Run a command: a line of a console block behind its prompt.
    Run {
        /// `#`: root's on a node; `$`: somebody's with access to the API server.
        prompt: char,
        /// The command.
        command: &'a str,
        /// The output that the page shows; empty: none.
        output: &'a str,
    },
}

/// Returns the repository's folder.
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the text of a page, by its path in the repository.
pub fn page(path: &str) -> Result<String> {
    let path = repository().join(path);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the steps of a page's section whose heading starts like this.
pub fn steps<'a>(page: &'a str, heading: &str) -> Result<Vec<Step<'a>>> {
    let mut sections = page.split("\n## ").skip(1).filter(|section| section.starts_with(heading));
    let section = sections.next().with_context(|| format!("the page has no section {heading:?}"))?;
    let mut steps = Vec::new();
    for block in section.split("\n```").skip(1).step_by(2) {
        match block.split_once('\n') {
            Some(("yaml", manifests)) => steps.push(Step::Apply(manifests)),
            Some(("console", text)) => commands(text, &mut steps),
            _ => {}
        }
    }
    ensure!(!steps.is_empty(), "the section {heading:?} has no steps");
    Ok(steps)
}

fn commands<'a>(text: &'a str, steps: &mut Vec<Step<'a>>) {
    let lines = text.split_inclusive('\n').scan(0, |end, line| {
        *end += line.len();
        Some((*end - line.len(), line))
    });
    let starts: Vec<_> = lines.filter(|(_, line)| line.starts_with(['$', '#'])).map(|(start, _)| start).collect();
    for (index, start) in starts.iter().enumerate() {
        let end = starts.get(index + 1).copied().unwrap_or(text.len());
        let part = &text[*start..end];
        let (line, output) = part.split_once('\n').unwrap_or((part, ""));
        let (prompt, command) = if let Some(command) = line.strip_prefix("# ") {
            ('#', command)
        } else {
            ('$', line.trim_start_matches("$ "))
        };
        steps.push(Step::Run { prompt, command, output });
    }
}

/// Returns the words of an output that are the same everywhere: no times, cluster addresses, node
/// ports, nodes or Pods.
pub fn skeleton(output: &str) -> Vec<Vec<String>> {
    let is_time = |word: &str| word.ends_with(['s', 'm', 'h', 'd']) && word.starts_with(|c: char| c.is_ascii_digit());
    let word = |word: &str| match word {
        word if is_time(word) => "TIME".to_owned(),
        word if word.starts_with("10.") => "CLUSTER-ADDRESS".to_owned(),
        word if word.starts_with("node-") => "NODE".to_owned(),
        // The name of a Deployment's Pod.
        word if word.starts_with('"') && word.split('-').count() == 3 => {
            format!("POD of {}", word.split('-').next().unwrap_or_default())
        }
        word => word.split_once(':').map_or(word, |(port, _)| port).to_owned(),
    };
    let mut lines: Vec<Vec<_>> = output.lines().map(|line| line.split_whitespace().map(word).collect()).collect();
    lines.retain(|line| !line.is_empty());
    // Events are ordered by time.
    if let Some(rows) = lines.get_mut(1..) {
        rows.sort();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_manifests_and_commands_with_what_they_print() {
        let page = "# T\n\n## 1. One\n\n```yaml\na: 1\n```\n\nText.\n\n```\nno step\n```\n\n```console\n$ ls -l\na\nb\n\
                    # id\n```\n\n## 2. Two\n\nNothing.\n";
        let one = steps(page, "1.").unwrap();
        let expected = [
            Step::Apply("a: 1"),
            Step::Run { prompt: '$', command: "ls -l", output: "a\nb\n" },
            Step::Run { prompt: '#', command: "id", output: "" },
        ];
        assert_eq!(one, expected);
        assert!(steps(page, "2.").unwrap_err().to_string().contains("no steps"));
        assert!(steps(page, "3.").is_err());
    }

    #[test]
    fn a_skeleton_has_what_is_the_same_in_every_cluster() {
        let shown = "NAME  EXTERNAL-IP  PORT(S)  AGE\nweb  192.0.2.200  80:31380/TCP  5m\n";
        let elsewhere = "NAME  EXTERNAL-IP  PORT(S)  AGE\nweb  192.0.2.200  80:30001/TCP  2s\n";
        assert_eq!(skeleton(shown), skeleton(elsewhere));
        assert_ne!(skeleton(shown), skeleton(&elsewhere.replace(".200", ".201")));
        assert_eq!(skeleton("{\"hostname\": \"web-1f-2c\"}"), skeleton("{\"hostname\": \"web-9d-8b\"}"));
        assert_ne!(skeleton("\"web-1f-2c\""), skeleton("\"admin-1f-2c\""));
    }
}
