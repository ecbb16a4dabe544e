//! What a fault does, and how a schedule names it.

/// What a fault does at its point. Its argument is in brackets: `ms` are milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// The caller waits (ms).
    Delay = 1,
    /// The caller waits until the board is disarmed (ms, at most).
    Hang,
    /// The operation fails (the error's number).
    Error,
    /// SIGKILL to the process itself.
    Kill,
    /// SIGSTOP to the process itself, which the campaign's driver continues.
    Stop,
    /// A child that only sleeps (ms) and has copies of all files.
    Fork,
    /// System calls of this thread and of the main one are interrupted each millisecond (ms).
    Interrupts,
    /// The site leaves its message or connection out.
    Drop,
    /// The site does it twice.
    Duplicate,
    /// The site changes a byte.
    Corrupt,
    /// The site does a part of it.
    Partial,
}

impl Action {
    pub const ALL: [Self; 11] = [
        Self::Delay,
        Self::Hang,
        Self::Error,
        Self::Kill,
        Self::Stop,
        Self::Fork,
        Self::Interrupts,
        Self::Drop,
        Self::Duplicate,
        Self::Corrupt,
        Self::Partial,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Hang => "hang",
            Self::Error => "error",
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Fork => "fork",
            Self::Interrupts => "interrupts",
            Self::Drop => "drop",
            Self::Duplicate => "duplicate",
            Self::Corrupt => "corrupt",
            Self::Partial => "partial",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }

    pub(crate) fn of(number: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|action| *action as u32 == number)
    }

    /// True if it is nothing without an argument.
    pub(crate) fn needs_argument(self) -> bool {
        use Action::{Delay, Error, Fork, Hang, Interrupts};
        matches!(self, Delay | Hang | Error | Fork | Interrupts)
    }
}
