//! Workers that a file or a DNS name lists: they join the fleet as they appear there and leave it, once
//! they are idle, as they vanish.

mod dns;
mod file;
mod roster;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::dns::Name;
use self::file::WorkersFile;
use self::roster::Roster;
use crate::app::config::Config;
use crate::base::config_error::ConfigError;
use crate::base::supervise::keep_running;
use crate::proxy::lane::Shared;

/// How often the file is looked at. A change counts once it looks the same twice.
const FILE_INTERVAL: Duration = Duration::from_millis(500);

/// Where workers are listed.
pub struct Discovery {
    file: Option<WorkersFile>,
    names: Vec<Name>,
    roster: Roster,
}

impl Discovery {
    /// Adds what the file lists to the fleet. Names are resolved later, by `watch`.
    pub fn start(shared: &Arc<Shared>) -> Result<Discovery, ConfigError> {
        let config = &shared.config;
        let names = names(config)?;
        let mut roster = Roster::new(shared.clone(), 1 + names.len());
        let mut file = config.workers_file.clone().map(WorkersFile::new);
        if let Some(file) = &mut file {
            let urls = file
                .read()
                .map_err(|why| ConfigError(format!("workers_file: {why}")))?;
            roster.list(0, urls);
        }
        Ok(Discovery {
            file,
            names,
            roster,
        })
    }

    /// Follows what is listed until the runtime ends.
    pub async fn watch(self, shared: Arc<Shared>) {
        let roster = Rc::new(RefCell::new(self.roster));
        for (index, name) in self.names.into_iter().enumerate() {
            let (watched, roster, name) = (shared.clone(), roster.clone(), Rc::new(name));
            keep_running(shared.log.clone(), "a name of workers", move || {
                follow(watched.clone(), roster.clone(), 1 + index, name.clone())
            });
        }
        let mut file = self.file;
        let mut reload = shared.reload.clone();
        let mut tick = interval(FILE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                _ = tick.tick() => false,
                changed = reload.changed() => changed.is_ok(),
            };
            roster.borrow_mut().remove_idle();
            let Some(mut reading) = file.take() else {
                continue;
            };
            // The file may be on a disk that hangs.
            let read = move || {
                let urls = reading.changes(asked);
                (reading, urls)
            };
            let Ok((again, urls)) = spawn_blocking(read).await else {
                return; // The runtime is ending.
            };
            file = Some(again);
            match urls {
                None => {}
                Some(Ok(urls)) => {
                    let count = urls.len();
                    shared
                        .log
                        .info("the workers' file was read", &[("workers", &count)]);
                    roster.borrow_mut().list(0, urls);
                }
                Some(Err(why)) => shared
                    .log
                    .warn("the workers stay as they are", &[("error", &why)]),
            }
        }
    }
}

/// Resolves a name over and over.
async fn follow(shared: Arc<Shared>, roster: Rc<RefCell<Roster>>, source: usize, name: Rc<Name>) {
    let mut reload = shared.reload.clone();
    let mut last: Option<Result<Vec<String>, String>> = None;
    loop {
        let found = name.resolve().await;
        if last.as_ref() != Some(&found) {
            match &found {
                Ok(urls) => {
                    let count = urls.len();
                    shared.log.info(
                        "a name was resolved",
                        &[("name", &name), ("workers", &count)],
                    );
                    roster.borrow_mut().list(source, urls.clone());
                }
                Err(why) => shared.log.warn(
                    "a name cannot be resolved, its workers stay as they are",
                    &[("name", &name), ("error", why)],
                ),
            }
            last = Some(found);
        }
        tokio::select! {
            () = sleep(shared.config.dns_interval) => {}
            _ = reload.changed() => {}
        }
    }
}

fn names(config: &Config) -> Result<Vec<Name>, ConfigError> {
    config
        .worker_dns
        .iter()
        .map(|text| Name::parse(text))
        .collect()
}

/// Checks what can be checked without looking at what is listed.
pub fn validate(config: &Config) -> Result<(), ConfigError> {
    names(config).map(drop)
}
