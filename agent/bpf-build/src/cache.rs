//! Finds the folder of `cargo xtask` for downloads and builds, used by all checkouts.

use std::{env, path::PathBuf};

/// Returns the folder, which may not exist yet. `None`: there is neither `XDG_CACHE_HOME` nor a
/// home directory.
pub fn folder() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))?;
    Some(cache.join("vipmux"))
}
