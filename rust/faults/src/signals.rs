//! Faults that a process sends itself as signals, and its children.

use std::io::{Error, Result};
use std::time::{Duration, Instant};

/// Time between two signals of a storm.
const PERIOD: Duration = Duration::from_millis(1);

/// Sends this thread SIGKILL or SIGSTOP, which end or stop the process before this returns.
pub fn end_or_stop(signal: libc::c_int) {
    // SAFETY: no handler runs for these signals.
    unsafe { libc::raise(signal) };
}

extern "C" fn nothing(_: libc::c_int) {}

/// Begins to interrupt system calls of the calling and the main thread, as a profiler's timer would.
///
/// By SIGURG, which ends no process that has another handler for it or none.
pub fn interrupt(time: Duration) -> Result<()> {
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: a handler that does nothing may run anywhere. Without SA_RESTART, calls end with EINTR.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut())
    };
    if installed != 0 {
        return Err(Error::last_os_error());
    }
    let (threads, until) = (threads(), Instant::now() + time);
    let storm = move || {
        while Instant::now() < until {
            threads.iter().for_each(|&thread| signal(thread));
            std::thread::sleep(PERIOD);
        }
    };
    std::thread::Builder::new()
        .name("fault-storm".into())
        .spawn(storm)?;
    Ok(())
}

/// The numbers of the main thread and the calling one.
#[cfg(target_os = "linux")]
fn threads() -> [libc::pid_t; 2] {
    // SAFETY: they only return numbers.
    unsafe { [libc::getpid(), libc::gettid()] }
}

#[cfg(target_os = "linux")]
fn signal(thread: libc::pid_t) {
    // SAFETY: three numbers. A thread that has ended is not found.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGURG) };
}

/// The process, which elsewhere than on Linux is all that can be signalled without a thread that might have ended.
#[cfg(not(target_os = "linux"))]
fn threads() -> [libc::pid_t; 1] {
    // SAFETY: it only returns a number.
    [unsafe { libc::getpid() }]
}

#[cfg(not(target_os = "linux"))]
fn signal(process: libc::pid_t) {
    // SAFETY: two numbers.
    unsafe { libc::kill(process, libc::SIGURG) };
}

/// Forks a child that sleeps for `time`, with copies of all open files, and ends.
pub fn fork(time: Duration) -> Result<()> {
    // SAFETY: the child calls nothing but what may be called after a fork.
    match unsafe { libc::fork() } {
        -1 => Err(Error::last_os_error()),
        0 => sleep_and_end(time),
        child => reap(child),
    }
}

/// For a child that was forked, to which nothing of its parent's belongs: sleeps and ends, without any clean-up.
pub fn sleep_and_end(time: Duration) -> ! {
    let left = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos() as _,
    };
    // SAFETY: both may be called after a fork.
    unsafe {
        libc::nanosleep(&left, std::ptr::null_mut());
        libc::_exit(0)
    }
}

/// Waits for a child's end in a thread, so that it does not stay as a zombie.
pub fn reap(child: libc::pid_t) -> Result<()> {
    let wait = move || {
        // SAFETY: it only waits for a child of this process; the status is dropped.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    };
    std::thread::Builder::new()
        .name("fault-child".into())
        .spawn(wait)?;
    Ok(())
}
