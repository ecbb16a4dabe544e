//! Finds out which process is at the other end of a connection.

use std::io::{Error, Result};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, getuid, pidfd_open};

/// `SO_PEERPIDFD`, from Linux 6.5 on: works for processes of other pid namespaces too.
const PEER_PIDFD: libc::c_int = 77;

/// The process at the other end.
#[derive(Debug)]
pub struct PeerProcess {
    /// 0 for a process of another pid namespace, which has no number here.
    pub pid: i32,
    /// Readable when the process is gone. `None` if the kernel cannot say; then the connection's end stands for it.
    pub alive: Option<OwnedFd>,
}

impl PeerProcess {
    /// The process at the other end of `stream`. Fails if it belongs to another user or has ended.
    pub fn of(stream: &impl AsFd) -> Result<Self> {
        // rustix cannot be used: its process numbers cannot be 0.
        // SAFETY: plain numbers.
        let credentials: libc::ucred = unsafe { option(stream, libc::SO_PEERCRED)? };
        if credentials.uid != getuid().as_raw() {
            return Err(Error::other("it belongs to another user"));
        }
        // SAFETY: a number.
        let alive = match unsafe { option::<libc::c_int>(stream, PEER_PIDFD) } {
            // SAFETY: the kernel opened this file for this call.
            Ok(file) => Some(unsafe { OwnedFd::from_raw_fd(file) }),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                match Pid::from_raw(credentials.pid) {
                    Some(pid) => Some(pidfd_open(pid, PidfdFlags::empty())?),
                    None => None,
                }
            }
            Err(error)
                if [libc::ESRCH, libc::EINVAL]
                    .map(Some)
                    .contains(&error.raw_os_error()) =>
            {
                return Err(Error::other("its process has ended"));
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            pid: credentials.pid,
            alive,
        })
    }
}

/// # Safety
/// The socket option's value is a `T`.
unsafe fn option<T>(stream: &impl AsFd, name: libc::c_int) -> Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: an open socket, and room for as much as `len` says.
    let result = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(Error::last_os_error());
    }
    if len as usize != size_of::<T>() {
        return Err(Error::other("a socket option of another size"));
    }
    // SAFETY: the kernel filled it in, and the caller vouches for the type.
    Ok(unsafe { value.assume_init() })
}
