//! A TCP client that opens and closes connections at a fixed rate, even if earlier ones failed.

use std::{net::SocketAddrV4, pin::pin, time::Instant};

use anyhow::Result;
use tokio::{
    net::TcpStream,
    runtime::Builder,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{GRACE, PAUSE, Series, Shared};

/// Parts into which the wait for a connection is divided.
const LOOKS: u32 = 9;

/// Connects until it is stopped.
pub(super) fn ask(server: SocketAddrV4, shared: &Shared<Series>) -> Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut pause = interval(PAUSE);
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut attempts = JoinSet::new();
        while !shared.is_over() {
            pause.tick().await;
            let number = shared.lock().begin(Instant::now());
            let shared = shared.clone();
            attempts.spawn(async move {
                let mut connection = pin!(TcpStream::connect(server));
                // A pause of the whole machine uses up only one of the parts.
                for _ in 0..LOOKS {
                    match timeout(GRACE / LOOKS, &mut connection).await {
                        Ok(Ok(_)) => return shared.lock().answer(number, Instant::now()),
                        Ok(Err(error)) => return println!("connection {number} failed: {error}"),
                        Err(_) => {}
                    }
                }
                println!("connection {number} was not made within {GRACE:?}");
            });
            while attempts.try_join_next().is_some() {}
        }
        attempts.join_all().await;
        Ok(())
    })
}
