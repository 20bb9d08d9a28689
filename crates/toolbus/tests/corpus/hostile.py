"""A legacy MCP server that misbehaves in the mode named by its first argument."""

import json
import os
import sys
import threading
import time

MODE = sys.argv[1]
LOCK = threading.Lock()


def say(message):
    with LOCK:
        sys.stdout.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
        sys.stdout.flush()


def result(request, value):
    say({"jsonrpc": "2.0", "id": request["id"], "result": value})


def tools():
    count = 5000 if MODE == "many" else 1
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return [{"name": "%s_%d" % (MODE, n), "description": "tool %d" % n, "inputSchema": schema} for n in range(count)]


def noise():
    while True:
        if MODE == "garbage":
            say("this is not JSON {{{ \x00 \u2028")
        elif MODE == "stderr":
            sys.stderr.write("x" * 4000 + "\n")
            sys.stderr.flush()
            continue
        elif MODE == "loop":
            say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        time.sleep(0.001)


def call(request):
    text = {"content": [{"type": "text", "text": "ok " + MODE}]}
    if MODE == "dies":
        sys.stderr.write("about to fall over\n")
        sys.stderr.flush()
        os._exit(3)
    if MODE == "silent":
        return
    if MODE == "twice":
        result(request, text)
        result(request, {"content": [{"type": "text", "text": "second"}]})
        return
    if MODE == "foreign":
        say({"jsonrpc": "2.0", "id": 987654321, "result": {"content": []}})
        say({"jsonrpc": "2.0", "id": "unknown", "error": {"code": 1, "message": "?"}})
        say({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "?"}})
    if MODE == "huge":
        text["content"][0]["text"] = "x" * (100 << 20)
    result(request, text)


def main():
    if MODE in ("garbage", "stderr", "loop"):
        threading.Thread(target=noise, daemon=True).start()
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if "id" not in request or method is None:
            continue
        if method == "initialize":
            info = {"name": MODE, "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            result(request, {"protocolVersion": request["params"]["protocolVersion"], "capabilities": capabilities,
                             "serverInfo": info})
        elif method == "tools/list":
            page, every = int((request.get("params") or {}).get("cursor") or 0), tools()
            answer = {"tools": every[page:page + 500]}
            if page + 500 < len(every):
                answer["nextCursor"] = str(page + 500)
            result(request, answer)
        elif method == "tools/call" and not str(request["params"].get("name")).startswith(MODE + "_"):
            say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32602, "message": "Unknown tool"}})
        elif method == "tools/call":
            call(request)
        elif method == "ping":
            result(request, {})
        else:
            say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "Method not found"}})


main()
