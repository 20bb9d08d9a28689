//! Requests that all partitions answer, and the answers so far.

use super::RequestId;
use crate::Partition;
use std::collections::HashMap;
use toolbus_engine::{FollowView, InspectView, Outgoing, StatusView};

/// Maximum number of rows of a merged answer, as of a single partition.
const MAX_ROWS: usize = 1000;

/// The answers to the requests of one connection.
pub struct Answers {
    partitions: usize,
    gathered: HashMap<RequestId, Gathered>,
    follows: HashMap<RequestId, Followed>,
}

/// A request that ends with its answer.
struct Gathered {
    /// How many partitions have not answered.
    missing: usize,
    /// A partition has refused it, which was reported.
    is_refused: bool,
    merged: Merged,
}

enum Merged {
    Status(StatusView),
    Inspection(InspectView),
}

/// A follow: the last view of each partition, and what was reported.
struct Followed {
    views: Vec<Option<FollowView>>,
    reported: Option<FollowView>,
    is_refused: bool,
}

impl Answers {
    pub fn new(partitions: usize) -> Self {
        Self { partitions, gathered: HashMap::new(), follows: HashMap::new() }
    }

    pub fn expect_status(&mut self, id: &RequestId) {
        self.expect(id, Merged::Status(StatusView::default()));
    }

    pub fn expect_inspection(&mut self, id: &RequestId) {
        self.expect(id, Merged::Inspection(InspectView { remembered_ms: u64::MAX, ..InspectView::default() }));
    }

    fn expect(&mut self, id: &RequestId, merged: Merged) {
        let gathered = Gathered { missing: self.partitions, is_refused: false, merged };
        self.gathered.insert(id.clone(), gathered);
    }

    pub fn follow(&mut self, id: &RequestId) {
        let followed = Followed { views: vec![None; self.partitions], reported: None, is_refused: false };
        self.follows.insert(id.clone(), followed);
    }

    pub fn unfollow(&mut self, id: &RequestId) {
        self.follows.remove(id);
    }

    /// A partition refused a request. Returns whether the connection has to be told.
    pub fn refused(&mut self, id: &RequestId) -> bool {
        if let Some(followed) = self.follows.get_mut(id) {
            return !std::mem::replace(&mut followed.is_refused, true);
        }
        let Some(gathered) = self.gathered.get_mut(id) else { return true };
        gathered.missing -= 1;
        let is_first = !std::mem::replace(&mut gathered.is_refused, true);
        if gathered.missing == 0 {
            self.gathered.remove(id);
        }
        is_first
    }

    /// The complete answer, once all partitions have answered.
    fn gather(&mut self, id: RequestId, merge: impl FnOnce(&mut Merged)) -> Option<Outgoing> {
        let gathered = self.gathered.get_mut(&id)?;
        merge(&mut gathered.merged);
        gathered.missing -= 1;
        if gathered.missing > 0 {
            return None;
        }
        let gathered = self.gathered.remove(&id).filter(|gathered| !gathered.is_refused)?;
        Some(match gathered.merged {
            Merged::Status(view) => Outgoing::Status { request_id: id, view: Box::new(view) },
            Merged::Inspection(view) => Outgoing::Inspected { request_id: id, view: Box::new(view) },
        })
    }

    pub fn status(&mut self, partition: Partition, id: RequestId, view: StatusView) -> Option<Outgoing> {
        self.gather(id, |merged| {
            let Merged::Status(all) = merged else { return };
            // Every partition has the same connections.
            if partition == Partition(0) {
                all.connections = view.connections;
            }
            all.set_aside += view.set_aside;
            all.more_mailboxes += view.more_mailboxes;
            for row in view.mailboxes {
                match all.mailboxes.iter_mut().find(|known| known.name == row.name) {
                    Some(known) => {
                        known.messages += row.messages;
                        known.bytes += row.bytes;
                        known.in_flight += row.in_flight;
                        known.oldest_ms = known.oldest_ms.max(row.oldest_ms);
                    }
                    None => all.mailboxes.push(row),
                }
            }
            all.mailboxes.sort_by(|a, b| b.messages.cmp(&a.messages).then_with(|| a.name.cmp(&b.name)));
            all.more_mailboxes += all.mailboxes.len().saturating_sub(MAX_ROWS) as u64;
            all.mailboxes.truncate(MAX_ROWS);
        })
    }

    pub fn inspected(&mut self, id: RequestId, view: InspectView) -> Option<Outgoing> {
        self.gather(id, |merged| {
            let Merged::Inspection(all) = merged else { return };
            merge_lists(&mut all.peers, view.peers, |all, one| *all |= one);
            merge_lists(&mut all.unknown, view.unknown, |all, one| *all &= one);
            merge_lists(&mut all.messages, view.messages, |all, one| *all = all.or(one));
            merge_lists(&mut all.settled, view.settled, |all, one| *all |= one);
            all.remembered_ms = all.remembered_ms.min(view.remembered_ms);
            all.rows.extend(view.rows);
            all.more |= view.more || all.rows.len() > MAX_ROWS;
            all.rows.truncate(MAX_ROWS);
        })
    }

    /// A partition reports a follow. The connection is told once all have, and after every change. Whether a peer is
    /// connected is taken from the follower's home partition alone: the others learn of it a moment earlier or later.
    pub fn followed(
        &mut self,
        partition: Partition,
        home: Partition,
        id: RequestId,
        view: FollowView,
    ) -> Option<Outgoing> {
        let followed = self.follows.get_mut(&id)?;
        followed.views[usize::from(partition.0)] = Some(view);
        let peers = followed.views[usize::from(home.0)].as_ref()?.peers.clone();
        let mut merged = FollowView { peers, uncollected: Vec::new() };
        for view in &followed.views {
            merge_lists(&mut merged.uncollected, view.as_ref()?.uncollected.clone(), |all, one| *all |= one);
        }
        if followed.reported.as_ref() == Some(&merged) {
            return None;
        }
        followed.reported = Some(merged.clone());
        Some(Outgoing::Followed { request_id: id, view: Box::new(merged) })
    }
}

/// Merges two lists item by item. The first list is empty before the first answer.
fn merge_lists<T>(all: &mut Vec<T>, one: Vec<T>, merge: impl Fn(&mut T, T)) {
    if all.is_empty() {
        *all = one;
    } else {
        all.iter_mut().zip(one).for_each(|(all, one)| merge(all, one));
    }
}
