"""What children of tests answer: each function is called in the child and returns what answers."""

import os
import time

from gpusonde.service.child import pack


def echo():
    return lambda data, limit_s: data


def sleep():
    return lambda data, limit_s: time.sleep(600)


def fail_on_request():
    def answer(data, limit_s):
        if data == b"fail":
            raise ZeroDivisionError("as told")
        return data

    return answer


def allocate():
    return lambda data, limit_s: str(len(bytearray(int(data)))).encode()


def fork():
    def answer(data, limit_s):
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
        return str(child).encode()

    return answer


def look_around():
    def answer(data, limit_s):
        files = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
        for number in sorted(map(int, os.listdir("/proc/self/fd"))):
            try:
                files.append(os.readlink(f"/proc/self/fd/{number}"))
            except FileNotFoundError:
                continue
        return pack({"environment": dict(os.environ), "folder": os.getcwd(), "files": files})

    return answer


def print_loudly():
    def answer(data, limit_s):
        print("x" * 10)
        return data

    print("made")
    return answer
