//! Finds the node that opened a connection, in the tables of the kernel. All nodes dial the same addresses, so the address
//! that was dialled doesn't tell.

use std::{
    fs,
    net::{SocketAddr, SocketAddrV4},
    sync::Mutex,
};

use tokio::sync::watch;

use super::node::Node;

/// The processes of the nodes.
#[derive(Default)]
pub struct Processes(Mutex<Vec<(Node, watch::Receiver<Option<u32>>)>>);

impl Processes {
    pub fn add(&self, node: Node, process: watch::Receiver<Option<u32>>) {
        self.0.lock().expect("no panic").push((node, process));
    }

    /// The node at the other end of a loopback connection; `None` if it is another process. Blocks for about a millisecond.
    pub fn of(&self, peer: SocketAddr) -> Option<Node> {
        let SocketAddr::V4(peer) = peer else { return None };
        let socket = format!("socket:[{}]", inode(&fs::read_to_string("/proc/net/tcp").ok()?, peer)?);
        let nodes = self.0.lock().expect("no panic").clone();
        let owns = |process: u32| {
            let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
            descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|link| link.as_os_str() == &*socket)
        };
        nodes.iter().find(|(_, process)| process.borrow().is_some_and(owns)).map(|(node, _)| *node)
    }
}

/// The inode of the socket with this local address, in a table with the format of `/proc/net/tcp`.
fn inode(table: &str, local: SocketAddrV4) -> Option<&str> {
    // Only a local address follows the number of its row. A table with thousands of closed sockets must not be parsed.
    let local = format!(": {:08X}:{:04X} ", u32::from_ne_bytes(local.ip().octets()), local.port());
    table[table.find(&local)? + 1..].split_ascii_whitespace().nth(8)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_is_traced_to_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_far, peer) = listener.accept().unwrap();
        let processes = Processes::default();
        assert_eq!(processes.of(peer), None);
        processes.add(Node::broker(0), watch::channel(None).1);
        processes.add(Node::broker(1), watch::channel(Some(std::process::id())).1);
        assert_eq!(processes.of(peer), Some(Node::broker(1)));
    }
}
