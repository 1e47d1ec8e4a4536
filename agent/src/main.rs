fn main() -> anyhow::Result<()> {
    use clap::Parser as _;
    #[derive(clap::Parser)]
    enum Cli {
        Agent(vipmux::cli::agent::AgentArgs),
        Inspect(vipmux::cli::inspect::Inspect),
    }
    match Cli::parse() {
        Cli::Agent(args) => vipmux::cli::agent::run(args),
        Cli::Inspect(_i) => Ok(()),
    }
}
