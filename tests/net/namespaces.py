"""Machines that reach one address and nothing else: network namespaces, each with one cable to us."""

import contextlib
import os
import subprocess


def permitted():
    """Whether namespaces and cables can be made here."""
    if os.getuid() != 0:
        return False
    name = f"atoll-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made


@contextlib.contextmanager
def machines(count):
    """The namespace of each, and the address by which it reaches us."""
    names = []
    try:
        places = []
        for number in range(count):
            name, ours, theirs = (f"at{os.getpid() % 100000}{letter}{number}" for letter in "nab")
            net = f"10.{200 + number}.{os.getpid() % 250}"
            names.append(name)
            for line in (
                f"ip netns add {name}",
                f"ip link add {ours} type veth peer name {theirs}",
                f"ip link set {theirs} netns {name}",
                f"ip addr add {net}.1/30 dev {ours}",
                f"ip link set {ours} up",
                f"ip -n {name} addr add {net}.2/30 dev {theirs}",
                f"ip -n {name} link set {theirs} up",
            ):
                subprocess.run(line.split(), check=True, capture_output=True)
            places.append((name, f"{net}.1"))
        yield places
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
