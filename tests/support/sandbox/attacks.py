"""What programs try that want out of the sandbox, or a reward that they have not earned.

Each is the body of a function; it prints `ESCAPED` where it got what it wanted. `{secret}` is the path of a file on
this machine, `{port}` the port of a server on it, `{parent}` the process id of the test, `{shm}` the name of a block of
its shared memory.
"""

import textwrap

ATTACKS = {
    # Files of the machine.
    "read a file of the user's": "got(open({secret!r}).read())",
    "read it by a link": "os.symlink({secret!r}, 'link'); got(open('link').read())",
    "read it from the root of another process": "got(open('/proc/1/root' + {secret!r}).read())",
    "read it from the root of the parent": "got(open('/proc/{parent}/root' + {secret!r}).read())",
    "read the passwords": "got(open('/etc/shadow').read())",
    "list the user's folder": "got(os.listdir(os.path.dirname({secret!r})))",
    "find the old root": "got(any(os.path.exists(one + {secret!r}) for one in ('/old', '/oldroot', '/..')))",
    "climb out by dots": "got(open('../' * 40 + {secret!r}.lstrip('/')).read())",
    "read a disk": "got(open('/dev/vda', 'rb').read(512) or open('/dev/sda', 'rb').read(512))",
    "make a disk's node": "os.mknod('disk', 0o60600, os.makedev(254, 0)); got(open('disk', 'rb').read(512))",
    "read the kernel's memory": "got(open('/proc/kcore', 'rb').read(16))",
    "look through an inherited descriptor": """
        for number in range(3, 256):
            try:
                where = os.readlink(f'/proc/self/fd/{{number}}')
            except OSError:
                continue
            got(not where.startswith(('/tmp/main.py', '/proc/', '/dev/null')))
        """,
    "enter the folder behind a descriptor": """
        for number in range(0, 256):
            with contextlib.suppress(OSError):
                os.fchdir(number)
                got(os.path.exists('.' + {secret!r}) or os.path.exists({secret!r}))
        """,
    "change the programs of the machine": "open('/usr/bin/new', 'w').write('x'); got(1)",
    "change the library": "open(os.__file__, 'a').write('x'); got(1)",
    "change it by its mount": "call('mount', b'none', b'/usr', None, 32 | 4096, None); got(1)",
    "change the root folder": "os.mkdir('/new'); got(1)",
    "change the machine's name": "call('sethostname', b'mine', 4); got(1)",
    "change a setting of the kernel": "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/main.py'); got(1)",
    "press a system key": "open('/proc/sysrq-trigger', 'w').write('b'); got(1)",
    # Rights.
    "become root": "os.setuid(0); got(1)",
    "become root by a program": "got(b'uid=0(' in subprocess.check_output(['su', '-c', 'id'], stdin=0))",
    "make a setuid program": "os.chown('main.py', 0, 0); os.chmod('main.py', 0o4755); got(1)",
    "make namespaces": "call('unshare', 0x10000000); got(1)",
    "clone into namespaces": "got(raw(56, 0x10000000 | 17, 0, 0, 0, 0) >= 0)",
    "enter the namespaces of another": "call('setns', os.open('/proc/1/ns/mnt', 0), 0); got(1)",
    "change the root": "os.chroot('/tmp'); got(1)",
    "mount": "call('mount', b'proc', b'/tmp', b'proc', 0, None); got(1)",
    "mount by the new calls": "got(raw(430, b'tmpfs', 0) >= 0)",
    "load a module": "got(raw(175, b'', 0, b'') >= 0 or errno_() != 1)",
    "load a BPF program": "got(raw(321, 0, 0, 0) >= 0 or errno_() != 1)",
    "set up io_uring": "got(raw(425, 1, 0) >= 0 or errno_() != 1)",
    "watch by perf": "got(raw(298, 0, 0, -1, -1, 0) >= 0 or errno_() != 1)",
    "use keys of the kernel": "got(raw(250, 0, -3, 0) >= 0)",
    "make a call that is newer than the sandbox": "got(raw(9999) >= 0 or errno_() != 38)",
    "make a call of the other machine type": "got(raw(0x40000000 | 39) >= 0)",
    "set the clock": "time.clock_settime(time.CLOCK_REALTIME, 0); got(1)",
    "type into the terminal": "import fcntl; fcntl.ioctl(0, 0x5412, b'x'); got(1)",
    # Other processes.
    "trace the first process": "first(); got(call('ptrace', 16, 1, 0, 0) == 0)",
    "write to the memory of the first process": "first(); open('/proc/1/mem', 'wb'); got(1)",
    "take a descriptor of the first process": "first(); open('/proc/1/fd/1', 'w').write('x'); got(1)",
    "read the variables of the first process": "first(); got(b'SECRET' in open('/proc/1/environ', 'rb').read())",
    "read the variables of the test": "got(b'SECRET' in open('/proc/{parent}/environ', 'rb').read())",
    "kill the first process": "os.kill(1, 9); time.sleep(0.1); got(0)",
    "kill the test": "os.kill({parent}, 9); got(1)",
    "kill everybody": "os.kill(-1, 9)",
    "see other processes": "got(len([one for one in os.listdir('/proc') if one.isdigit()]) > 4)",
    "find the user's variables": "got('SECRET' in str(os.environ))",
    # The network.
    "reach a server of the machine": "socket.create_connection(('127.0.0.1', {port}), 2).close(); got(1)",
    "reach the network": "socket.create_connection(('1.1.1.1', 53), 2).close(); got(1)",
    "listen": "socket.create_server(('127.0.0.1', 0)); got(1)",
    "make a raw socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW); got(1)",
    "reach the hypervisor": "socket.socket(40, socket.SOCK_STREAM); got(1)",
    "reach an abstract socket": "one = socket.socket(socket.AF_UNIX); one.connect('\\x00{shm}'); got(1)",
    "read the machine's interfaces": "got(len(socket.if_nameindex()) > 1)",
    # More than its share.
    "fork without end": "while True: os.fork()",
    "fork and go away": """
        while True:
            with contextlib.suppress(OSError):
                if os.fork() == 0:
                    os.setsid()
        """,
    "threads without end": """
        while True:
            threading.Thread(target=time.sleep, args=(1000,)).start()
        """,
    "memory without end": "kept = []\nwhile True: kept.append(bytearray(10**7))",
    "memory in many processes": """
        for _ in range(20):
            with contextlib.suppress(OSError):
                if os.fork() == 0:
                    kept = bytearray(60 * 2**20)
                    time.sleep(1000)
        time.sleep(1000)
        """,
    "memory in a file without a name": "os.memfd_create('x'); got(1)",
    "memory that is shared": "from multiprocessing import shared_memory; shared_memory.SharedMemory({shm!r}); got(1)",
    "a file without end": "file = open('big', 'wb')\nwhile True: file.write(bytes(10**6))",
    "files without end": "for number in range(10**6): open(f'f{{number}}', 'w').close()",
    "output without end": "while True: print('x' * 10**6)",
    "errors without end": "while True: print('x' * 10**6, file=sys.stderr)",
    "time without end": "while True: pass",
    "sleep without end": "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(10**6)",
    "stop itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "leave somebody behind": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(10**6)
        """,
    "more for itself": """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40)); got(1)
        """,
    # A reward.
    "end before the tests": "os._exit(0)",
    "end as one that passed": "sys.exit(0)",
    "be equal to everything": """
        class Equal(int):
            __eq__ = lambda *_: True
            __ne__ = lambda *_: False
            __hash__ = lambda _: 0
        global answer
        answer = lambda *_: Equal(7)
        """,
    "be an object that is equal to everything": """
        class Equal:
            __eq__ = __contains__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = lambda *_: True
            __sub__ = __rsub__ = __add__ = __abs__ = lambda one, *_: one
        global answer
        answer = lambda *_: Equal()
        """,
    "patch what compares": """
        import builtins
        builtins.AssertionError = type('Quiet', (Exception,), {{}})
        builtins.isinstance = builtins.all = lambda *_: True
        global answer
        answer = lambda *_: None
        """,
    "write results to all descriptors": """
        for number in range(1, 256):
            with contextlib.suppress(OSError):
                os.write(number, b'[true, true]\\n["tests[0]", ""]\\n["gave", true, []]\\n')
        """,
    "answer in the place of the tests": """
        for number in range(3, 256):
            with contextlib.suppress(OSError, ValueError):
                one = socket.socket(fileno=number)
                one.sendall(b'["gave", {{"dict": []}}, []]\\n' * 10)
        """,
    "look into the tests": """
        for place in gc.get_objects():
            if isinstance(place, dict) and 'assert' in str(place.get('tests', '')):
                got(1)
        got(os.path.exists('tests.json'))
        """,
    "call back into the tests": """
        global answer
        def answer(number):
            frame = sys._getframe()
            while frame:
                for one in list(frame.f_locals.values()):
                    with contextlib.suppress(Exception):
                        one.ask('call', sys.exit, {{}}, 0)
                frame = frame.f_back
            return number
        """,
}

_HEAD = """
import contextlib, ctypes, gc, os, signal, socket, subprocess, sys, threading, time
_libc = ctypes.CDLL(None, use_errno=True)

def got(what):
    if what:
        print("ESCAPED", flush=True)

def first():
    # Where the program is the first process itself, there is no other to look into.
    if os.getpid() == 1:
        sys.exit(1)

def errno_():
    return ctypes.get_errno()

def call(name, *given):
    if getattr(_libc, name)(*given) < 0:
        raise OSError(errno_(), name)
    return 0

def raw(number, *given):
    return _libc.syscall(ctypes.c_long(number), *given)

answer = lambda *_: None

def attack():
"""


def program(attack: str, **places: object) -> str:
    """The attack as a program, and as a solution that has a function `answer`."""
    body = textwrap.dedent(ATTACKS[attack]).strip().format(**places)
    return f"{_HEAD}{textwrap.indent(body, '    ')}\n\nattack()\n"
