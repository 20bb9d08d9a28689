//! The mark of data that is being moved to another place, or was. It is in the record that no broker can start without, the
//! identity, so that neither side of an unfinished move can be served, and the source of a finished one can't be served
//! again.

use std::fmt::{Display, Formatter};

/// A move and the part that this place has in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveMark {
    /// The random name of the move: both sides have the same.
    pub id: String,
    /// The state of this side.
    pub state: MoveState,
    /// The other side, as messages call it.
    pub other: String,
}

/// The state of one side of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveState {
    /// The data is being copied from here.
    Leaving,
    /// All data is at the other side.
    Left,
    /// The data is being copied to here.
    Arriving,
}

impl MoveState {
    const ALL: [Self; 3] = [Self::Leaving, Self::Left, Self::Arriving];

    fn word(self) -> &'static str {
        match self {
            Self::Leaving => "leaving",
            Self::Left => "left",
            Self::Arriving => "arriving",
        }
    }
}

impl MoveMark {
    /// The mark as a line of text.
    pub fn to_text(&self) -> String {
        let other = self.other.replace(['\n', '\r'], " ");
        format!("{} {} {other}", self.state.word(), self.id)
    }

    /// Reads the line.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        let (state, id, other) = (words.next()?, words.next()?, words.next()?);
        let state = MoveState::ALL.into_iter().find(|known| known.word() == state)?;
        Some(Self { id: id.to_owned(), state, other: other.to_owned() })
    }
}

impl Display for MoveMark {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.state {
            MoveState::Leaving => write!(f, "is being moved to {}", self.other),
            MoveState::Left => write!(f, "was moved to {}", self.other),
            MoveState::Arriving => write!(f, "is the target of a move from {} that is not finished", self.other),
        }
    }
}
