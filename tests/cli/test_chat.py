#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`minisgl chat` at a terminal, as a user types.

    test_chat.py MINISGL MODEL

Ctrl-C during an answer and at the prompt, texts of several lines, typed and pasted, commands and their errors, the end
of the context, Ctrl-D, signals; that the terminal is left as it was found, and what the history has. Then the same
program behind a pipe.
"""
import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import tempfile
import termios
import time

MINISGL, MODEL = sys.argv[1:3]
LIMIT_S = 60
OPTIONS = ["--model", MODEL, "--device", "cpu", "--num-pages", "4096", "--threads", "1", "--temperature", "0"]
failures = []


def check(ok, what, seen=""):
    if not ok:
        failures.append(what)
        print(f"FAILED: {what}\n  seen: {seen[-600:]!r}")


def reset_signals():
    """A shell starts background jobs with these ignored; a terminal's jobs have them."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    def __init__(self, state, *options, color=False):
        self.parent, self.child = pty.openpty()
        self.modes = termios.tcgetattr(self.child)
        env = dict(os.environ, XDG_STATE_HOME=state, TERM="xterm", NO_COLOR="1", LC_ALL="C", MINISGL_LOG="error")
        if color:
            del env["NO_COLOR"]

        def own_terminal():
            reset_signals()
            import fcntl
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen([MINISGL, "chat", *OPTIONS, *options], stdin=self.child, stdout=self.child,
                                        stderr=self.child, env=env, start_new_session=True, preexec_fn=own_terminal)
        self.seen = ""
        self.mark = 0
        self.until("Ctrl-D ends.")
        self.prompt()

    def read(self, seconds):
        if select.select([self.parent], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.parent, 65536).decode("utf-8", "replace")
            except OSError:
                return False
        return True

    def until(self, words, what=""):
        """What came since the last call, up to and with these words (a regular expression)."""
        end = time.monotonic() + LIMIT_S
        while True:
            found = re.search(words, self.seen[self.mark:])
            if found:
                text = self.seen[self.mark:self.mark + found.end()]
                self.mark += found.end()
                return text
            if time.monotonic() > end or not self.read(1):
                check(False, what or f"waited for {words}", self.seen[self.mark:])
                raise SystemExit(1)

    def prompt(self):
        return self.until(r"(\x1b\[\?2004h|\n)[^\n]*> (\x1b\[K)?")

    def type(self, text):
        os.write(self.parent, text.encode())

    def enter(self, line):
        """Types a line; what came up to the next prompt."""
        self.type(line + "\r")
        return self.prompt()

    def end(self, code, what):
        end = time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        if self.process.poll() is None:
            self.process.kill()
        while self.read(0) and select.select([self.parent], [], [], 0.1)[0]:
            pass
        check(self.process.wait() == code, f"{what}: exit {self.process.returncode}, expected {code}", self.seen)
        check(termios.tcgetattr(self.child) == self.modes, f"{what}: the terminal's modes are what they were")
        check(self.seen.rfind("\x1b[?2004l") >= self.seen.rfind("\x1b[?2004h"), f"{what}: pastes are not marked any more")
        os.close(self.parent)
        os.close(self.child)


def history(state):
    path = os.path.join(state, "minisgl", "chat_history")
    check(stat.S_IMODE(os.stat(path).st_mode) == 0o600, "the history is the user's alone")
    with open(path, encoding="utf-8") as file:
        return file.read().split("\n")[:-1]


def saved(terminal, path):
    terminal.enter(f"/save -f {path}")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def test_talk(state, folder):
    t = Terminal(state)
    out = t.enter("What is 2 + 3?")
    check("2 + 3 = 5." in out and re.search(r"\[9 tokens, .*; context: 25 of 2048\]", out), "an answer", out)
    out = t.enter("/nonsense")
    check("no command /nonsense; commands: /help, " in out, "an unknown command", out)
    out = t.enter("/params top_p 2")
    check('top_p is "2"; allowed: a number from' in out, "a bad value", out)
    check("temperature          0\r\n" in t.enter("/params"), "the parameters", t.seen)
    for _ in range(8): # it never shows what was typed twice: the terminal is ready when the prompt is there
        out = t.enter("/params top_k 20")
        check(out.count("/params") == 1, "echoed once", out)
    out = t.enter("/params max_tokens 3") + t.enter("What is 3 + 4?")
    check("[cut after 3 tokens, which max_tokens allows;" in out, "an answer that max_tokens cut", out)
    t.enter("/params max_tokens default")
    check("3 + 4 = 7." in t.enter("/regenerate"), "an answer again", t.seen)
    file = os.path.join(folder, "talk.json")
    check("4 messages saved" in t.enter(f"/save {file}"), "saved", t.seen)
    check("talk.json exists; /save -f FILE" in t.enter(f"/save {file}"), "not saved over a file", t.seen)
    t.enter("/reset")
    check("4 messages loaded" in t.enter(f"/load {file}"), "loaded", t.seen)
    with open(file, encoding="utf-8") as f:
        check([m["content"] for m in json.load(f)] == ["What is 2 + 3?", "2 + 3 = 5.", "What is 3 + 4?", "3 + 4 = 7."],
              "what was saved")
    t.type("\x04")
    t.end(0, "Ctrl-D")
    entries = history(state)
    check(entries[0] == "What is 2 + 3?" and entries[-1] == f"/load {file}", "the history", str(entries))


def test_interrupts(state, folder):
    t = Terminal(state)
    t.type("half a line\x03")
    seen = t.prompt()
    check("^C\r" in seen, "Ctrl-C at the prompt clears the line", t.seen)
    check(seen.count("half a line") <= 1, "and does not draw it again", t.seen)
    t.type("one\\\r")
    t.until(r"\. ")
    t.type("two\x03")
    t.prompt()
    check("2 + 3 = 5." in t.enter("What is 2 + 3?"), "what was cleared was not asked", t.seen)
    t.enter("/params ignore_eos 1")
    t.type("Tell me a story.\r")
    t.until("story\\.\r\n")
    t.until("[a-z ,.]{20}")
    t.type("\x03")
    out = t.prompt()
    check("[stopped; what has come stays in the conversation" in out, "Ctrl-C stops an answer", out)
    messages = saved(t, os.path.join(folder, "stopped.json"))
    check(len(messages) == 4 and len(messages[3]["content"]) >= 20, "what came of it stays", str(messages))
    check("forgotten" in t.enter("/undo"), "undo", t.seen)
    t.type("Tell me a story.\r")
    t.until("story\\.\r\n")
    t.until("[a-z ,.]{20}")
    t.type("\x03/undo\r") # before there is a prompt
    t.until("stopped; ")
    t.until("forgotten")
    t.prompt()
    t.enter("/params ignore_eos default")
    check("= 7" in t.enter("What is 3 + 4?"), "it goes on", t.seen)
    check(len(saved(t, os.path.join(folder, "stopped.json"))) == 4, "what was undone is gone")
    t.type("\x1a") # Ctrl-Z, and on
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        pid, status = os.waitpid(t.process.pid, os.WUNTRACED | os.WNOHANG)
        if pid and os.WIFSTOPPED(status):
            break
        t.read(0.05)
    else:
        check(False, "Ctrl-Z stops it", t.seen)
    check(termios.tcgetattr(t.child) == t.modes, "the terminal's modes while it is stopped")
    os.kill(t.process.pid, signal.SIGCONT)
    t.prompt()
    t.enter(" /params")
    t.type("/bye\r")
    t.end(0, "/bye")
    entries = history(state)
    check("half a line" not in entries and " /params" not in entries and "/bye" in entries, "the history", str(entries))


def test_lines(state, folder):
    t = Terminal(state, "--max-tokens", "2")
    t.type("one\\\r")
    t.until(r"\. ")
    t.enter("two")
    t.type('"""\r')
    t.until(r"\. ")
    t.type("/reset\r")
    t.until(r"\. ")
    t.enter('h\u00e9 \u4f60"""')
    t.enter("//etc/hosts is what?")
    t.type("\x1b[200~a\tb\r/exit\nc\n\x1b[201~") # pasted; the last line waits
    t.until(r"\. ")
    t.until("c")
    t.enter("d")
    t.type("\x1b[200~single\x1b[201~")
    t.until("single")
    t.enter("")
    texts = ["one\ntwo", "/reset\nh\u00e9 \u4f60", "/etc/hosts is what?", "a\tb\n/exit\ncd", "single"]
    asked = [m["content"] for m in saved(t, os.path.join(folder, "lines.json")) if m["role"] == "user"]
    check(asked == texts, "texts of several lines", str(asked))
    t.type("\x04")
    t.end(0, "Ctrl-D")
    entries = history(state)
    check('one\\\\\\ntwo' in entries and '"""\\n/reset\\nh\u00e9 \u4f60"""' in entries, "several lines in the history", str(entries))

    t = Terminal(state, "--max-tokens", "2")
    for _ in range(3): # /save, single, and what was pasted
        t.type("\x1b[A")
    t.until("/exit")
    t.enter("")
    asked = [m["content"] for m in saved(t, os.path.join(folder, "lines.json")) if m["role"] == "user"]
    check(asked == ["a\tb\n/exit\ncd"], "the history of another session brings them back", str(asked))
    t.type("what is begun\\\r")
    t.until(r"\. ")
    t.type("\x04") # the text's end
    t.until("tokens, ")
    t.prompt()
    t.type("\x04")
    t.end(0, "Ctrl-D in the second line, then at the prompt")


def test_context(state):
    t = Terminal(state, "--max-seq-len-override", "40")
    out = t.enter("Tell me about everything that there is in the world.") # ends by itself, or is cut
    t.enter("/reset")
    t.enter("/params ignore_eos 1")
    out = t.enter("What is 2 + 3?")
    check("[cut: the context is full, 40 of 40 tokens; /undo" in out, "an answer that the context cut", out)
    out = t.enter("And 3 + 4?")
    check(re.search(r"not asked, /undo or /reset makes room: the prompt has \d+ tokens; at most 39 fit", out),
          "a question that does not fit", out)
    t.enter("/undo")
    t.enter("/params ignore_eos default")
    check("2 + 3 = 5." in t.enter("What is 2 + 3?"), "there is room again", t.seen)
    t.type("/quit\r")
    t.end(0, "/quit")


def test_thoughts(state, folder):
    """The demo does not think: a template begins thoughts for it, which never end."""
    with open(os.path.join(MODEL, "chat_template.jinja"), encoding="utf-8") as file:
        template = file.read()
    thinks = template + "{%- if false -%}</think>{%- endif -%}{{- '<think>\\n' -}}"
    t = Terminal(state, "--chat-template", thinks, "--max-tokens", "5", color=True)
    out = t.enter("What is 2 + 3?")
    check(re.search(r"\x1b\[2m[^\x1b]{3,}\x1b\[0m\r\n\x1b\[2m\[5 tokens", out), "thoughts are dimmed", out)
    answer = saved(t, os.path.join(folder, "thoughts.json"))[1]
    check(answer["content"] == "" and len(answer["reasoning_content"]) > 2, "thoughts are kept as such", str(answer))
    t.type("\x04")
    t.end(0, "Ctrl-D")


def test_signals(state):
    for number in (signal.SIGTERM, signal.SIGHUP):
        t = Terminal(state)
        t.type("half a line")
        t.until("half a line")
        t.process.send_signal(number)
        t.end(128 + number, f"signal {number} at the prompt")
        t = Terminal(state, "--ignore-eos")
        t.type("Tell me a story.\r")
        t.until("story\\.\r\n")
        t.until("[a-z ,.]{20}")
        t.process.send_signal(number)
        t.end(128 + number, f"signal {number} during an answer")


def test_no_history(folder):
    path = os.path.join(folder, "file")
    with open(path, "w", encoding="utf-8"):
        pass
    t = Terminal(path) # a file in the folder's place
    out = t.enter("What is 2 + 3?") + t.enter("What is 2 + 3?")
    check(out.count("= 5.") == 2, "without a history", out)
    check(t.seen.count("warning: no history is kept: ") == 1, "it is said once", t.seen)
    t.type("\x04")
    t.end(0, "Ctrl-D without a history")


def piped(text, code, words, what, *options):
    p = subprocess.run([MINISGL, "chat", *OPTIONS, *options], input=text.encode(), capture_output=True, timeout=LIMIT_S,
                       env=dict(os.environ, MINISGL_LOG="error"), check=False)
    out = p.stdout.decode()
    check(p.returncode == code, f"{what}: exit {p.returncode}, expected {code}", out + p.stderr.decode())
    check(re.search(words, p.stderr.decode() if code else out), what, out + p.stderr.decode())
    check("> " not in out and ". " not in out.replace("5. ", "") and "\x1b" not in out, f"{what}: no prompts", out)
    return out


def test_pipe():
    piped("What is 2 + 3?\n", 0, r"^2 \+ 3 = 5\.\n\[9 tokens", "a pipe")
    piped("What is 2 + 3?", 0, "= 5", "a pipe whose last line has no end")
    piped('"""\nWhat is 2 + 3?\n', 0, "= 5", "a pipe that ends in a text")
    check("= 5" in piped("/nonsense\nWhat is 2 + 3?\n", 1, "no command", "a pipe with a mistake"), "it goes on")
    piped("/exit\nWhat is 2 + 3?\n", 0, "^$", "/exit in a pipe")
    piped("What \0 is\n", 1, "NUL", "a NUL")
    piped("one two three four five six seven eight nine ten\n", 1, "at most 7 fit", "too long", "--max-seq-len-override", "8")


def test_pipe_interrupted():
    p = subprocess.Popen([MINISGL, "chat", *OPTIONS, "--ignore-eos"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, preexec_fn=reset_signals)
    p.stdin.write(b"Tell me a story.\nWhat is 2 + 3?\n")
    p.stdin.flush()
    p.stdout.read(8)
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=LIMIT_S)
    check(p.returncode == 130, f"Ctrl-C in a pipe: exit {p.returncode}", out.decode())


def main():
    with tempfile.TemporaryDirectory() as folder:
        test_talk(os.path.join(folder, "a"), folder)
        test_interrupts(os.path.join(folder, "b"), folder)
        test_lines(os.path.join(folder, "c"), folder)
        test_context(os.path.join(folder, "d"))
        test_signals(os.path.join(folder, "e"))
        test_no_history(folder)
        test_thoughts(os.path.join(folder, "f"), folder)
        test_pipe()
        test_pipe_interrupted()
    print("chat: ok" if not failures else f"chat: {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
