"""A modern MCP server over HTTP without sessions. Arguments: its port, the description of its tool `effect`, and the file
to which that tool appends a line. Prints a line when it listens."""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, DESCRIPTION, EFFECTS = int(sys.argv[1]), sys.argv[2], sys.argv[3]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, message):
        data = json.dumps(dict(message, jsonrpc="2.0")).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, id = message.get("method"), message.get("id")
        if method == "server/discover":
            result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        elif method == "tools/list":
            schema = {"type": "object"}
            result = {"tools": [{"name": "effect", "description": DESCRIPTION, "inputSchema": schema}]}
        elif method == "tools/call":
            with open(EFFECTS, "a") as file:
                file.write("x\n")
            result = {"content": [{"type": "text", "text": "effected"}]}
        else:
            return self.answer(404, {"id": id, "error": {"code": -32601, "message": "Method not found"}})
        self.answer(200, {"id": id, "result": dict(result, resultType="complete")})


ThreadingHTTPServer.allow_reuse_address = True
server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
server.daemon_threads = True
print("listening", flush=True)
server.serve_forever()
