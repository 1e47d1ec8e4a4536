//! Where `cargo xtask` keeps what it downloads and builds, for all checkouts; shared with xtask and the tests.

use std::{env, path::PathBuf};

/// The folder, which need not exist; `None` where neither `XDG_CACHE_HOME` nor a home directory tells it.
pub(crate) fn folder() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))?;
    Some(cache.join("vipmux"))
}
