//! The two ends of a link on a pipe, so that the test decides what is read, and the clock moves by itself.

use super::{Link, LinkOptions, LocalPartition, ServedLink, front};
use bytes::{BufMut, Bytes, BytesMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolbus_cluster::{RemotePartition, Transport};
use toolbus_engine::{Command, ConnId, Mailboxes, Outbox, Outgoing, Peer, Rights};

/// Bytes that the pipe holds in each direction.
const PIPE: usize = 1024;
/// Size of the answer to each command.
const ANSWER: usize = 4096;

/// Answers every command at once with [`ANSWER`] bytes.
#[derive(Default)]
struct Echo {
    outbox: Mutex<Option<Arc<dyn Outbox>>>,
    submitted: AtomicU64,
    is_detached: AtomicBool,
    is_congested: AtomicBool,
}

impl Mailboxes for Echo {
    fn attach(&self, _peer: Peer, outbox: Arc<dyn Outbox>) -> ConnId {
        *self.outbox.lock().expect("no panic") = Some(outbox);
        ConnId(1)
    }

    fn submit(&self, _conn: ConnId, commands: &mut Vec<Command>) {
        commands.clear();
        self.submitted.fetch_add(1, Ordering::Relaxed);
        let body = Bytes::from(vec![b' '; ANSWER]);
        let event = Outgoing::Event { from: "echo".into(), correlation_id: "c".into(), body, batch: false };
        let outbox = self.outbox.lock().expect("no panic").clone().expect("attached");
        outbox.deliver(&mut vec![event]);
    }

    fn detach(&self, _conn: ConnId) {
        self.is_detached.store(true, Ordering::Relaxed);
    }

    fn congested(&self) -> bool {
        self.is_congested.load(Ordering::Relaxed)
    }
}

fn options() -> LinkOptions {
    LinkOptions { congested_bytes: 4 * ANSWER, max_queued_bytes: 1000 * ANSWER, ..LinkOptions::new("test", [0; 32]) }
}

/// Serves a link on a pipe.
fn serve(options: LinkOptions) -> (DuplexStream, Arc<Echo>, JoinHandle<()>) {
    let (front, owner) = tokio::io::duplex(PIPE);
    let echo = Arc::new(Echo::default());
    let mailboxes = Arc::clone(&echo) as Arc<dyn Mailboxes>;
    let local = LocalPartition { mailboxes, ended: CancellationToken::new() };
    (front, echo, tokio::spawn(ServedLink::new(owner, local, options).run()))
}

/// Longer than the silence of a link.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("the link ends")
}

fn peer() -> Peer {
    Peer { name: "ann".into(), role: None, numbered_receipts: true, rights: Rights::UNRESTRICTED, incarnation: 0 }
}

struct Discard;

impl Outbox for Discard {
    fn deliver(&self, outgoing: &mut Vec<Outgoing>) {
        outgoing.clear();
    }
}

/// Collects frames as they are written to a connection.
#[derive(Default)]
struct Written(Mutex<BytesMut>);

impl Transport for Written {
    fn send(&self, frame: Bytes) {
        let mut written = self.0.lock().expect("no panic");
        written.put_u32(frame.len() as u32);
        written.put_slice(&frame);
    }

    fn congested(&self) -> bool {
        false
    }
}

/// The bytes of a front whose client submits that many commands.
fn commands(count: u64) -> BytesMut {
    let written = Arc::new(Written::default());
    let remote = RemotePartition::new(Arc::clone(&written) as Arc<dyn Transport>);
    let conn = remote.attach(peer(), Arc::new(Discard));
    (0..count).for_each(|_| remote.submit(conn, &mut vec![Command::Subscribe]));
    std::mem::take(&mut *written.0.lock().expect("no panic"))
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_answers_wait_reads_no_further_and_goes_on_when_they_are_read() {
    let (mut front, echo, serving) = serve(LinkOptions { silence: Duration::from_secs(3600), ..options() });
    let count = 500;
    let bytes = commands(count);
    let (mut reader, mut writer) = tokio::io::split(front);
    let writing = tokio::spawn(async move {
        writer.write_all(&bytes).await.expect("written");
        writer
    });
    // Time passes only when nothing else can happen.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let submitted = echo.submitted.load(Ordering::Relaxed);
    assert!((4..=6).contains(&submitted), "{submitted} commands were carried out");
    let mut buffer = vec![0; 64 << 10];
    while echo.submitted.load(Ordering::Relaxed) < count {
        assert_ne!(reader.read(&mut buffer).await.expect("the link is open"), 0);
    }
    front = reader.unsplit(writing.await.expect("written"));
    drop(front);
    soon(serving).await.expect("it ends");
    assert!(echo.is_detached.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_front_that_reads_nothing_is_disconnected_although_it_sends() {
    let (front, echo, serving) = serve(options());
    let (_reader, mut writer) = tokio::io::split(front);
    writer.write_all(&commands(5)).await.expect("written");
    tokio::spawn(async move {
        while writer.write_all(&[0; 4]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    soon(serving).await.expect("no panic");
    assert!(echo.is_detached.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_front_that_sends_nothing_is_disconnected_although_it_reads() {
    let (mut front, _, serving) = serve(options());
    let mut read = Vec::new();
    tokio::time::timeout(Duration::from_secs(6), front.read_to_end(&mut read)).await.expect("it ends").expect("read");
    assert!(read.len() >= 4 * 4 && read.iter().all(|byte| *byte == 0), "keepalives: {read:?}");
    soon(serving).await.expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_sends_nothing_is_given_up_although_it_reads() {
    let (front, mut owner) = tokio::io::duplex(PIPE);
    let link = front::start(front, &options());
    tokio::spawn(async move { while owner.read(&mut [0; 64]).await.is_ok_and(|count| count > 0) {} });
    tokio::time::timeout(Duration::from_secs(6), link.closed.cancelled()).await.expect("the link ends");
}

#[tokio::test(start_paused = true)]
async fn a_link_stays_open_while_nothing_is_sent() {
    let (front, _echo, serving) = serve(options());
    let Link { mailboxes, closed } = front::start(front, &options());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!closed.is_cancelled() && !serving.is_finished());
    drop(mailboxes);
    soon(serving).await.expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn a_front_learns_of_a_congestion_and_of_its_end() {
    let (front, echo, _serving) = serve(options());
    let link = front::start(front, &options());
    let conn = link.mailboxes.attach(peer(), Arc::new(Discard));
    echo.is_congested.store(true, Ordering::Relaxed);
    link.mailboxes.submit(conn, &mut vec![Command::Subscribe]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(link.mailboxes.congested());
    echo.is_congested.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!link.mailboxes.congested());
}

#[tokio::test(start_paused = true)]
async fn an_oversized_or_unreadable_frame_ends_the_link() {
    for bytes in [&u32::MAX.to_be_bytes()[..], &[0, 0, 0, 1, 0xff]] {
        let (mut front, _, serving) = serve(options());
        front.write_all(bytes).await.expect("written");
        // Before its silence would.
        tokio::time::timeout(Duration::from_secs(1), serving).await.expect("the link ends").expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn an_overfull_front_ends_the_link_and_is_no_longer_congested() {
    let (front, _, _serving) = serve(options());
    let link = front::start(front, &LinkOptions { max_queued_bytes: 64 << 10, ..options() });
    let conn = link.mailboxes.attach(peer(), Arc::new(Discard));
    // Without a pause, the task of the link can't write.
    for _ in 0..2000 {
        link.mailboxes.submit(conn, &mut vec![Command::Subscribe]);
    }
    soon(link.closed.cancelled()).await;
    assert!(!link.mailboxes.congested());
}
