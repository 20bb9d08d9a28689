"""An MCP server over the HTTP transport of 2024-11-05: GET /sse is the stream of events, POST /messages takes messages.

It prints its port and serves until its stdin is closed."""
import json
import os
import queue
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

streams = {}
asked = {}
authorised = {"get": False, "post": False}
SECRET = "Bearer s3cret-token"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def body(self, status, text, kind="text/plain"):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/page":
            return self.body(200, "<html>", "text/html")
        if self.path not in ("/sse", "/foreign"):
            return self.body(404, "no such page")
        authorised["get"] = self.headers.get("Authorization") == SECRET
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        session, events = str(len(streams)), queue.Queue()
        streams[session] = events
        place = "http://localhost.example" if self.path == "/foreign" else ""
        self.wfile.write(("event: endpoint\r\ndata: %s/messages?session=%s\r\n\r\n: hello\r\n\r\n" % (place, session)).encode())
        self.wfile.flush()
        while (message := events.get()) is not None:
            self.wfile.write(("event: message\r\ndata: %s\r\n\r\n" % json.dumps(message)).encode())
            self.wfile.flush()

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        authorised["post"] = self.headers.get("Authorization") == SECRET
        events = streams.get(self.path.rpartition("=")[2])
        if not self.path.startswith("/messages?") or events is None:
            return self.body(404, "no such session")
        self.body(202, "Accepted")
        threading.Thread(target=handle, args=(message, events), daemon=True).start()


def handle(message, events):
    def result(value, id=message.get("id")):
        events.put({"jsonrpc": "2.0", "id": id, "result": value})

    def note(method, params):
        events.put({"jsonrpc": "2.0", "method": method, "params": params})

    method, params = message.get("method"), message.get("params") or {}
    if method is None:
        return result(message["result"], asked.pop(message["id"]))
    if "id" not in message:
        return
    if method == "initialize":
        return result({"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}})
    if method == "tools/list":
        return result({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
    if method != "tools/call":
        return events.put({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no such method"}})
    name = params["name"]
    if name == "slow":
        time.sleep(0.5)
        return result({"slow": True})
    if name == "progress":
        note("notifications/progress", {"progressToken": params["_meta"]["progressToken"], "progress": 1})
    if name == "change":
        note("notifications/tools/list_changed", {})
    if name == "authorised":
        return result(authorised)
    if name == "ask":
        asked["q"] = message["id"]
        return events.put({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
    if name == "hang up":
        return events.put(None)
    result(params.get("arguments", {}))


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
os._exit(0)
