"""An MCP server over streamable HTTP, of both eras, that misbehaves on request: the name of the tool says how.

It prints its port and serves until its stdin is closed."""
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

state = {"sessions": set(), "count": 0, "deleted": [], "closed": [], "posts": [], "resumed": [], "gets": 0}
SECRET = "Bearer s3cret-token"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def body(self, status, text, kind="application/json", **headers):
        data = text.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def result(self, id, value='{"ok":true}', **headers):
        self.body(200, '{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(id), value), **headers)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, message, id=None, retry=None):
        text = "id: %s\r\n" % id if id else ""
        text += "retry: %d\r\n" % retry if retry else ""
        text += "data: %s\r\n\r\n" % (message if isinstance(message, str) else json.dumps(message))
        self.wfile.write(text.encode())
        self.wfile.flush()

    def note(self, method, params, **more):
        self.event({"jsonrpc": "2.0", "method": method, "params": params}, **more)

    def do_DELETE(self):
        state["deleted"].append(self.headers.get("Mcp-Session-Id"))
        state["sessions"].discard(self.headers.get("Mcp-Session-Id"))
        self.body(200, "")

    def do_GET(self):
        if self.headers.get("Mcp-Session-Id") not in state["sessions"]:
            return self.body(404, "no session")
        last = self.headers.get("Last-Event-ID")
        if last and last.startswith("call-"):
            number = int(last.split("-")[1])
            state["resumed"].append(last)
            self.begin_stream()
            if len(state["resumed"]) == 1:
                return self.note("notifications/message", {"data": "half"}, id="call-%d-2" % number)
            return self.event('{"jsonrpc":"2.0","id":%d,"result":{"resumed":true}}' % number)
        state["gets"] += 1
        self.begin_stream()
        self.note("notifications/tools/list_changed", {"after": last}, id="own-%d" % state["gets"], retry=20)
        if state["gets"] > 1:
            time.sleep(100)

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.path = self.path.split("?")[0]
        if self.path == "/moved":
            return self.body(307, "", Location="/mcp")
        if self.path == "/away":
            return self.body(307, "", Location="http://127.0.0.2:1/mcp")
        if self.path == "/locked":
            return self.body(401, "no access with " + self.headers.get("Authorization", ""), kind="text/plain")
        message = json.loads(text)
        method, id, params = message.get("method"), message.get("id"), message.get("params", {})
        state["posts"].append({"message": message, "headers": {k.lower(): v for k, v in self.headers.items()}})
        modern = self.headers.get("MCP-Protocol-Version") == "2026-07-28"
        session = self.headers.get("Mcp-Session-Id")
        if method == "initialize":
            state["count"] += 1
            session = "session-%d" % state["count"]
            state["sessions"].add(session)
            words = '{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"h","version":"1"}}'
            return self.result(id, words, Mcp_Session_Id=session)
        if method == "state":
            return self.result(id, json.dumps(state, default=list))
        if method == "server/discover" and modern:
            return self.result(id, '{"supportedVersions":["2026-07-28"],"capabilities":{},"resultType":"complete"}')
        if not modern and session not in state["sessions"]:
            return self.body(404, '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}')
        if id is None or method is None:
            return self.body(202, "")
        if method == "tools/list":
            schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
            return self.result(id, json.dumps({"tools": [{"name": "json", "inputSchema": schema}]}))
        if method == "tools/call":
            return self.call(id, params, params["name"], text)
        self.body(404, '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no %s"}}' % (json.dumps(id), method))

    def call(self, id, params, name, text):
        token = params.get("_meta", {}).get("progressToken")
        if name == "json":
            self.result(id, text[text.index('"params":') + 9 : -1])
        elif name == "stream":
            self.begin_stream()
            self.wfile.write(b": ping\r\n\r\n")
            for number in range(3):
                self.note("notifications/progress", {"progressToken": token, "progress": number})
            self.event('{"jsonrpc":"2.0","id":%d,\r\ndata: "result":{"n":1.0}}' % id)
        elif name == "ask":
            self.begin_stream()
            self.event('{"jsonrpc":"2.0","id":7,"method":"roots/list"}')
            while not any(post["message"].get("result") for post in state["posts"]):
                time.sleep(0.01)
            self.event('{"jsonrpc":"2.0","id":%d,"result":{}}' % id)
        elif name == "break":
            self.begin_stream()
            self.event("", id="call-%d-1" % id, retry=20)
        elif name == "break_for_good":
            self.begin_stream()
            self.note("notifications/message", {"data": 1})
        elif name == "endless":
            self.begin_stream()
            self.note("notifications/message", {"data": "begun"})
            try:
                while True:
                    self.wfile.write(b": ping\n\n")
                    time.sleep(0.02)
            except OSError:
                state["closed"].append(id)
        elif name == "huge":
            self.begin_stream()
            self.event('{"jsonrpc":"2.0","id":%d,"result":{"text":"%s"}}' % (id, "x" * (20 << 20)))
        elif name == "huge_json":
            self.result(id, '"%s"' % ("x" * (20 << 20)))
        elif name == "forget_in_call":
            # Reports progress, drops the session, and disconnects before the response.
            self.begin_stream()
            self.wfile.write(b"id: 1\r\n")
            self.note("notifications/progress", {"progressToken": token, "progress": 1})
            state["sessions"].clear()
            self.close_connection = True
        elif name == "forget":
            state["sessions"].clear()
            self.result(id)
        elif name == "silent":
            self.body(202, "")
        elif name == "error":
            self.body(400, '{"jsonrpc":"2.0","id":%d,"error":{"code":-32021,"message":"m","data":{"x":1.0}}}' % id)
        elif name == "crash":
            self.body(500, "oops", kind="text/plain")
        elif name == "not_json":
            self.body(200, "<html>", kind="text/html")


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
os._exit(0)
