//! Writes the initial inputs, frames or annotations, into a folder. For annotations it also writes
//! libFuzzer's dictionary beside the folder.

use std::{env, fs, path::Path};

use anyhow::{Context, Result, bail};
use vipmux_testing::annotations;
use vipmux_tests::packet::property;

fn main() -> Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [target, folder] = arguments.as_slice() else { bail!("usage: seeds frames|annotations FOLDER") };
    let folder = Path::new(folder);
    let seeds: Vec<Vec<u8>> = match target.as_str() {
        "frames" => property::seeds(),
        "annotations" => {
            let lines = annotations::seeds();
            let words: String = lines.iter().map(|line| format!("\"\\x0A{line}\"\n")).collect();
            let path = folder.with_extension("dict");
            fs::write(&path, words).with_context(|| format!("cannot write {}", path.display()))?;
            lines.into_iter().map(String::into_bytes).collect()
        }
        other => bail!("no target {other:?}: frames and annotations are known"),
    };
    for (number, seed) in seeds.iter().enumerate() {
        let path = folder.join(format!("seed-{number}"));
        fs::write(&path, seed).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
