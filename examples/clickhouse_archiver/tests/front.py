"""A small HTTP front for the ClickHouse engine in the package chdb-core: the engine is real, this layer is ours.

What the archiver uses of ClickHouse's HTTP interface: settings in the address, one request at a time in a session (error 373
otherwise), bodies in chunks, of which only a whole one counts. There is one session for all temporary tables.

    front.py PORT DIRECTORY [repeat]

`repeat`: each INSERT ... SELECT is done twice, as by a proxy that repeats a request whose answer it missed.
"""

import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from chdb.session import Session

TRANSPORT = {"query", "query_id", "database", "default_format", "session_id", "session_timeout", "compress", "decompress"}
PORT, DIRECTORY = int(sys.argv[1]), sys.argv[2]
REPEAT = "repeat" in sys.argv[3:]

engine = Session(DIRECTORY)
one_at_a_time = threading.Lock()
sessions = set()


class Problem(Exception):
    def __init__(self, text):
        found = re.search(r"Code: (\d+)", text)
        self.code = found.group(1) if found else "0"
        super().__init__(text)


def ask(sql, form="TabSeparated"):
    try:
        return engine.query(sql, form).bytes() or b""
    except Exception as error:
        raise Problem(str(error)) from error


def run(parameters, body):
    head = parameters.get("query")
    settings = {name: value for name, value in parameters.items() if name not in TRANSPORT}
    with one_at_a_time:
        ask("USE `%s`" % parameters.get("database", "default"))
        for name, value in settings.items():
            ask("SET %s = '%s'" % (name, value))
        try:
            if head is None:
                sql = body.decode()
                form = parameters.get("default_format", "TabSeparated")
                answer = ask(sql, form)
                if REPEAT and re.match(r"INSERT\s.*\sSELECT\s", sql, re.S):
                    ask(sql, form)
                return answer
            path = os.path.join(DIRECTORY, "body")
            with open(path, "wb") as file:
                file.write(body)
            insert, form = re.fullmatch(r"(INSERT INTO .*) FORMAT (\w+)", head, re.S).groups()
            return ask("%s FROM INFILE '%s' FORMAT %s" % (insert, path, form))
        finally:
            for name in settings:
                ask("SET %s = DEFAULT" % name)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def read(self, count):
        got = self.rfile.read(count)
        if len(got) != count:
            raise ConnectionError("the body breaks off")
        return got

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.read(int(self.headers.get("Content-Length", 0)))
        whole = b""
        while True:
            size = int(self.rfile.readline() or b"x", 16)
            whole += self.read(size)
            self.read(2)
            if size == 0:
                return whole

    def do_POST(self):
        parameters = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        session = parameters.get("session_id")
        with one_at_a_time:
            locked = session in sessions
            if session and not locked:
                sessions.add(session)
        try:
            body = self.body()
            if locked:
                raise Problem("Code: 373. Session %s is locked by a concurrent client" % session)
            status, code, answer = 200, None, run(parameters, body)
        except (ConnectionError, ValueError):
            self.close_connection = True
            return
        except Problem as problem:
            status, code, answer = 500, problem.code, str(problem).encode()
        finally:
            if not locked:
                with one_at_a_time:
                    sessions.discard(session)
        self.send_response(status)
        if code:
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
server.daemon_threads = True
server.serve_forever()
