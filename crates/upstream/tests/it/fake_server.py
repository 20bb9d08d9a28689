"""An MCP server over stdio that misbehaves on request: the name of the tool says how."""
import json
import os
import sys
import time

out = sys.stdout.buffer


def say(text):
    out.write(text.encode() + b"\n")
    out.flush()


def note(method, params):
    say(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}))


def result(id, value='{"ok":true}'):
    say('{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(id), value))


def raw_params(line):
    return line[line.index('"params":') + 9 : -1]


def call(id, params, line, name):
    token = params.get("_meta", {}).get("progressToken")
    if name == "echo":
        result(id, raw_params(line))
    elif name == "garbage":
        for text in ["Starting up...", "", "{not json", "[1,2]", '"text"', "\x1b[31mred", '{"jsonrpc":"2.0"}']:
            say(text)
        out.write(b"\xff\xfe\n")
        result(id)
    elif name == "garbage_forever":
        for number in range(3000):
            out.write(b"log line %d\n" % number)
        out.flush()
    elif name == "flood_stderr":
        for number in range(400_000):
            sys.stderr.write("complaint %d about nothing in particular\n" % number)
        sys.stderr.flush()
        result(id)
    elif name == "progress":
        for number in range(params["arguments"]["count"]):
            note("notifications/progress", {"progressToken": token, "progress": number, "total": 1.50})
        result(id)
    elif name == "logs":
        for number in range(params["arguments"]["count"]):
            note("notifications/message", {"level": "info", "data": number})
        result(id)
    elif name == "die":
        sys.stderr.write("first words\nout of luck\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "twice":
        result(id, '{"answer":1}')
        result(id, '{"answer":2}')
    elif name == "foreign":
        result(99_999, '{"answer":"foreign"}')
        result(str(id), '{"answer":"text"}')
        result(id, '{"answer":"mine"}')
    elif name == "huge":
        size = params["arguments"]["bytes"]
        out.write(b'{"jsonrpc":"2.0","result":{"id":5,"text":"')
        for _ in range(size >> 20):
            out.write(b"x" * (1 << 20))
        out.write(b'"},"id":%d}\n' % id)
        out.flush()
    elif name == "broken":
        say('{"jsonrpc":"2.0","id":%d,"result":{},"error":{"code":1,"message":"both"}}' % id)
    elif name == "doubled":
        say('{"jsonrpc":"2.0","id":%d,"result":{},"result":{}}' % id)
    elif name == "ask":
        say('{"jsonrpc":"2.0","id":"q-1","method":"elicitation/create","params":{"message":"name?"}}')
        answer = sys.stdin.readline()
        result(id, json.dumps({"answer": json.loads(answer)}))
    elif name == "environment":
        result(id, json.dumps(dict(os.environ)))
    elif name == "wait_for_cancel":
        note("notifications/message", {"level": "info", "data": "waiting"})
        result(id, json.dumps({"heard": json.loads(sys.stdin.readline())}))
    elif name == "stop_reading":
        time.sleep(1000)
    elif name == "silent":
        pass


def tools(id, params):
    start = int(params.get("cursor", "0"))
    page = {"tools": [{"name": "tool%d" % n, "inputSchema": {"type": "object"}} for n in range(start, start + 500)]}
    if start + 500 < 5000:
        page["nextCursor"] = str(start + 500)
    result(id, json.dumps(page))


era = sys.argv[1] if len(sys.argv) > 1 else "legacy"
if len(sys.argv) > 2:
    with open(sys.argv[2], "a") as starts:
        starts.write("%d\n" % os.getpid())
if era == "slow":
    time.sleep(3)
serves = None
for line in iter(sys.stdin.readline, ""):
    line = line.rstrip("\n")
    message = json.loads(line)
    method, id, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "initialize" and era in ("legacy", "mute", "strict", "slow") or (method, era, serves) == ("initialize", "both", None):
        serves = "legacy"
        result(id, '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}')
    elif method == "server/discover" and era == "mute":
        pass
    elif method == "server/discover" and era == "strict":
        sys.exit(5)
    elif method == "server/discover" and (era == "modern" or (era, serves) == ("both", None)):
        serves = "modern"
        result(id, '{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{},"ttlMs":0}')
    elif method == "tools/call":
        call(id, params, line, params["name"])
    elif method == "tools/list":
        tools(id, params)
    elif method == "subscriptions/listen":
        listen = id
        meta = {"io.modelcontextprotocol/subscriptionId": id}
        note("notifications/subscriptions/acknowledged", {"_meta": meta, "notifications": {}})
    elif method == "change":
        note("notifications/tools/list_changed", {"_meta": {"io.modelcontextprotocol/subscriptionId": listen}})
        note("notifications/cancelled", {"requestId": listen, "reason": "going down"})
        result(id)
    elif method == "tell":
        note("notifications/tools/list_changed", {})
    elif id is not None and method != "mute":
        say('{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found","data":1.0}}' % json.dumps(id))
