"""An MCP server whose only tool appends a line to a file when it starts, and answers after a while."""
import json
import sys
import threading
import time

EFFECTS = sys.argv[1]
LOCK = threading.Lock()
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}, "seconds": {"type": "number"}}}


def write(message):
    with LOCK:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def act(request):
    arguments = request["params"]["arguments"]
    with LOCK, open(EFFECTS, "a") as file:
        file.write(arguments["id"] + "\n")
    time.sleep(arguments["seconds"])
    result = {"content": [{"type": "text", "text": "did " + arguments["id"]}]}
    write({"jsonrpc": "2.0", "id": request["id"], "result": result})


for line in sys.stdin:
    request = json.loads(line)
    method, reply = request.get("method"), None
    if method == "initialize":
        info = {"name": "effects", "version": "1"}
        reply = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        reply = {"tools": [{"name": "act", "inputSchema": SCHEMA}]}
    elif method == "tools/call":
        threading.Thread(target=act, args=(request,), daemon=True).start()
    elif "id" in request:
        error = {"code": -32601, "message": "no such method"}
        write({"jsonrpc": "2.0", "id": request["id"], "error": error})
    if reply is not None:
        write({"jsonrpc": "2.0", "id": request["id"], "result": reply})
