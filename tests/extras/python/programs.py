"""Programs that a policy might write to get out, to stay, or to break what runs them."""

TOO_LARGE = "its files are too large or too many"
LASTING = {  # until the deadline
    "infinite loop": "while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "infinite output": "while True: print('x' * 1000)",
    "infinite output past sys.stdout": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "infinite outcome": "import os\nwhile True: os.write(3, b'v' * 65536)",
    "catches everything": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "ignores signals": (
        "import signal, time\nfor number in (2, 10, 14, 15, 24): signal.signal(number, signal.SIG_IGN)\n"
        "while True: time.sleep(0.01)"
    ),
    "closes its descriptors 0 to 2": "import os\nfor number in range(3): os.close(number)\nwhile True: pass",
    "long repr": "class A:\n    def __repr__(self):\n        while True: pass\nA()",
    "long message": "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E()",
}  # fmt: skip

REFUSED = {  # with an error
    "socket": "import socket; socket.socket()",
    "connection": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:1')",
    "fork bomb": "import os\nwhile True: os.fork()",
    "system": "import os\nif os.system('true'): raise PermissionError",
    "subprocess": "import subprocess; subprocess.run(['true'])",
    "spawn": "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "leaves a child behind": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)",
    "multiprocessing": "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
    "kills the host": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "stops the host": "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)",
    "kills all": "import os; os.kill(-1, 9)",
    "reads accounts": "open('/etc/passwd').read()",
    "reads the host's environment": "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "lists the root": "import os; os.listdir('/')",
    "leaves by a path": "open('../' * 9 + 'etc/passwd').read()",
    "writes next to its folder": "open('../left', 'w')",
    "deletes libraries": "import os; os.remove(os.__file__)",
    "moves libraries": "import os; os.rename(os.__file__, 'mine')",
    "changes rights": "import os; os.chmod(os.getcwd(), 0)",
    "raises its limits": "import resource as r; r.setrlimit(r.RLIMIT_CPU, (99, 99))",
}  # fmt: skip

ENDED = {  # with a text that says why
    "memory bomb": ("x = ' ' * (1 << 40)", "MemoryError"),
    "slow memory bomb": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "MemoryError"),
    "deep recursion": ("def f(): f()\nf()", "RecursionError"),
    "deeper recursion": (
        "import sys; sys.setrecursionlimit(10**9)\n"
        "class A:\n    def __repr__(self): return repr([self])\nrepr(A())",
        "Segmentation fault|MemoryError|RecursionError|Stack overflow",
    ),
    "nested code": ("(" * 5000, "SyntaxError|MemoryError|RecursionError"),
    "null bytes": ("\0", "null bytes"),
    "surrogates": ("x = '\ud800'", "UnicodeEncodeError|SyntaxError"),
    "prints surrogates": (r"print('\ud800')", r"\?"),
    "exit": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "hard exit": ("import os; os._exit(3)", "exit status 3"),
    "crash": ("import ctypes; ctypes.string_at(0)", "Segmentation fault|PermissionError"),
    "abort": ("import os; os.abort()", "program was ended"),
    "large file": ("f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 20))", "File too large"),
    "many files": ("n = 0\nwhile True:\n    open(str(n), 'wb').write(bytes(1 << 19)); n += 1", TOO_LARGE),
    "many folders": ("import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')", TOO_LARGE),
    "deep folders": (
        "import os\nfor _ in range(300):\n    os.mkdir('d' * 200); os.chdir('d' * 200)\nprint('done')",
        f"done|{TOO_LARGE}",
    ),
    "deleted files that are open": (
        "import os, time\ntry:\n    while True:\n"
        "        f = os.open('f', os.O_RDWR | os.O_CREAT); os.unlink('f'); os.write(f, bytes(1 << 19))\n"
        "except OSError: time.sleep(1000)", TOO_LARGE,
    ),
    "deleted files that are mapped": (
        "import ctypes, os, time\nfor _ in range(50):\n    f = os.open('f', os.O_RDWR | os.O_CREAT)\n"
        "    os.write(f, bytes(1 << 19)); ctypes.CDLL(None).mmap(None, 4096, 1, 2, f, 0)\n"
        "    os.unlink('f'); os.close(f)\ntime.sleep(1000)", TOO_LARGE,
    ),
    "many open files": ("kept = []\nwhile True: kept.append(open('f', 'w'))", "Too many open files"),
    "interrupts itself": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "spoils its error": (
        "class M(type):\n    @property\n    def __name__(self): raise SystemExit\n"
        "class E(Exception, metaclass=M):\n    def __str__(self): raise SystemExit\nraise E()", "E",
    ),
    "forges an outcome": ("import os; os.write(3, b'efake'); os._exit(0)", "fake"),
    "forges a reply": ("print('[\"fake\", false]')", "fake"),
}  # fmt: skip

HARMLESS = {
    "endless threads": (
        "import threading, time\ntry:\n    threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "except RuntimeError: pass\nprint('done')"
    ),
    "replaces what comes behind it": (
        "import os, json, sys, builtins, traceback, ast\n"
        "def no(*_, **__): raise RuntimeError('mine')\n"
        "os._exit = os.write = json.dumps = builtins.repr = builtins.print = no\n"
        "sys.stdout.write('done\\n'); sys.stdout.flush = no; builtins.BaseException = int"
    ),
    "deletes its own folder": "import os\ntry: os.rmdir(os.getcwd())\nexcept OSError: pass\nprint('done')",
    "a folder that nobody may read": "import os; os.mkdir('d', 0); print('done')",
    "keeps a deleted file": (
        "import mmap, tempfile, time\nwith tempfile.TemporaryFile() as f:\n"
        "    f.write(bytes(1 << 19)); f.flush(); kept = mmap.mmap(f.fileno(), 0); time.sleep(0.3)\n"
        "time.sleep(0.3)\nprint('done')"
    ),
    "shares memory with nobody": (
        "import mmap, time\nkept = mmap.mmap(-1, 4 << 20); kept.write(bytes(4 << 20)); time.sleep(0.3)\n"
        "print('done')"
    ),
    "reads nothing": "try:\n    input()\nexcept EOFError: print('done')",
}  # fmt: skip
