//! What faults do to a process: this one, which looks at one board, and children of it.

use std::fs;
use std::io::{PipeReader, Read, pipe};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sglang_omni_faults::{Action, Board, Order, SiteAction, are_on, pause, point, switch_on};

const PATIENCE: Duration = Duration::from_secs(60);

/// The board of this process, as its driver has mapped it.
static DRIVER: LazyLock<Board> = LazyLock::new(|| {
    assert!(!are_on() && point("before").unwrap().is_none());
    let path = std::env::temp_dir().join(format!("faults-process-{}", std::process::id()));
    let driver = Board::create(&path).unwrap();
    switch_on(Arc::new(Board::open(&path).unwrap()));
    fs::remove_file(path).unwrap();
    driver
});

fn arm(name: &str, action: Action, argument: u32) {
    let order = Order {
        action,
        argument,
        after: 1,
        times: 1,
        pid: 0,
    };
    DRIVER.arm(name, order).unwrap();
}

fn fired(name: &str) -> u64 {
    let points = DRIVER.points().unwrap();
    points
        .iter()
        .find(|point| point.name == name)
        .unwrap()
        .fired
}

/// The status of a forked child that reaches a point, once it has ended or stopped.
fn child_at(name: &str) -> (libc::pid_t, i32) {
    // SAFETY: the child only counts a hit, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        pause(name);
        // SAFETY: it may be called after a fork.
        unsafe { libc::_exit(7) };
    }
    (child, status(child))
}

fn status(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    let waited = unsafe { libc::waitpid(child, &mut status, libc::WUNTRACED) };
    assert_eq!(waited, child);
    status
}

#[test]
fn errors_and_a_sites_own_faults_are_returned() {
    arm("error", Action::Error, libc::ENOSPC as u32);
    let error = point("error").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(point("error").unwrap(), None);
    for (action, returned) in [
        (Action::Drop, SiteAction::Drop),
        (Action::Duplicate, SiteAction::Duplicate),
        (Action::Corrupt, SiteAction::Corrupt),
        (Action::Partial, SiteAction::Partial),
    ] {
        arm("site", action, 0);
        assert_eq!(point("site").unwrap(), Some(returned));
    }
}

#[test]
fn a_delay_lasts_and_a_hang_ends_when_disarmed_or_at_its_limit() {
    arm("delay", Action::Delay, 60);
    arm("short hang", Action::Hang, 60);
    for name in ["delay", "short hang"] {
        let start = Instant::now();
        pause(name);
        assert!(start.elapsed() >= Duration::from_millis(60), "{name}");
        assert_eq!(fired(name), 1);
    }
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let limit = 10 * PATIENCE;
    arm("hang", Action::Hang, limit.as_millis() as u32);
    let hanging = std::thread::spawn(|| {
        pause("hang");
        IS_OVER.store(true, Relaxed);
    });
    until(|| fired("hang") == 1);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!IS_OVER.load(Relaxed));
    // As `disarm` does, for this point alone: other tests' points stay armed.
    arm("hang", Action::Drop, 0);
    until(|| IS_OVER.load(Relaxed));
    hanging.join().unwrap();
}

fn until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_process_is_killed_and_stopped_where_it_is() {
    arm("kill", Action::Kill, 0);
    let (child, end) = child_at("kill");
    assert!(libc::WIFSIGNALED(end) && libc::WTERMSIG(end) == libc::SIGKILL);
    let points = DRIVER.points().unwrap();
    let killed = points.iter().find(|point| point.name == "kill").unwrap();
    assert_eq!((killed.fired, killed.fired_pid), (1, child as u32));
    assert_eq!(libc::WEXITSTATUS(child_at("kill").1), 7);

    arm("stop", Action::Stop, 0);
    let (child, stopped) = child_at("stop");
    assert!(libc::WIFSTOPPED(stopped));
    // SAFETY: a child of this process.
    unsafe { libc::kill(child, libc::SIGCONT) };
    assert_eq!(libc::WEXITSTATUS(status(child)), 7);
}

#[test]
fn a_forked_child_keeps_files_open_for_as_long_as_it_sleeps() {
    let (mut reader, writer) = pipe().unwrap();
    arm("fork", Action::Fork, 2000);
    pause("fork");
    drop(writer);
    assert!(!has_ended(&reader));
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

fn has_ended(reader: &PipeReader) -> bool {
    let mut fd = libc::pollfd {
        fd: reader.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one file number.
    unsafe { libc::poll(&mut fd, 1, 0) == 1 }
}

#[test]
fn a_storm_interrupts_system_calls() {
    let (reader, _writer) = pipe().unwrap();
    arm("storm", Action::Interrupts, PATIENCE.as_millis() as u32);
    pause("storm");
    // SAFETY: it reads into a byte, and nothing ever comes.
    let read = unsafe { libc::read(reader.as_raw_fd(), [0u8; 1].as_mut_ptr().cast(), 1) };
    let error = std::io::Error::last_os_error();
    assert_eq!((read, error.raw_os_error()), (-1, Some(libc::EINTR)));
}
