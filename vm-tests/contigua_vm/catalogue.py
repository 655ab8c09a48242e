"""The suites of :mod:`contigua_vm.suites`: what is run on both kernels."""

from __future__ import annotations

from contigua_vm.suites import Suite, Test
from contigua_vm.userland import SELFTESTS

#: Seconds of the guest's that each stressor works.
STRESS = 2

#: Its code is a number of failures. Its parts are told of here as other tests tell of theirs.
_KHUGEPAGED = r"""
./khugepaged 2>&1 | awk '
    function tell() { if (part) print (failed ? "not ok " : "ok ") part " " name }
    /^Run test: / { tell(); part++; name = substr($0, 11); failed = 0 }
    /Fail/ { failed = 1 }
    !/^ok|^not ok/ { print }
    END { tell(); exit !part }'
"""

#: As run_vmtests.sh runs them, then those that it leaves out.
_SELFTESTS = {
    "hugepage-mmap": "./hugepage-mmap",
    "hugepage-shm": "echo 268435456 >/proc/sys/kernel/shmmax; ./hugepage-shm",
    "map_hugetlb": "./map_hugetlb",
    "hugepage-mremap": "./hugepage-mremap huge/mremap; code=$?; rm -f huge/mremap; exit $code",
    "hugepage-vmemmap": "./hugepage-vmemmap",
    "hugetlb-madvise": "./hugetlb-madvise huge/madvise; code=$?; rm -f huge/madvise; exit $code",
    "map_fixed_noreplace": "./map_fixed_noreplace",
    "gup_test fast": "./gup_test -u",
    "gup_test pin": "./gup_test -a",
    "gup_test dump": "./gup_test -ct -F 0x1 0 19 0x1000",
    "userfaultfd anon": "./userfaultfd anon 20 4",
    "userfaultfd hugetlb": "./userfaultfd hugetlb 64 8",
    "userfaultfd hugetlb_shared": "./userfaultfd hugetlb_shared 64 8 huge/uffd; "
    "code=$?; rm -f huge/uffd; exit $code",
    "userfaultfd shmem": "./userfaultfd shmem 20 4",
    "thuge-gen": "./thuge-gen",
    "compaction_test": "echo 0 >/proc/sys/vm/nr_hugepages; ./compaction_test",
    "on-fault-limit": "chroot --userspec=65534:65534 / /selftests/on-fault-limit",
    "map_populate": "./map_populate",
    "mlock-random-test": "./mlock-random-test",
    "mlock2-tests": "./mlock2-tests",
    "mrelease_test": "./mrelease_test",
    "mremap_test": "./mremap_test",
    "virtual_address_range": "./virtual_address_range",
    "mremap_dontunmap": "./mremap_dontunmap",
    "hmm-tests": "major=$(awk '/HMM_DMIRROR/ {print $1}' /proc/devices); "
    '[ -n "$major" ] || exit 4; for i in 0 1; do mknod /dev/hmm_dmirror$i c $major $i; done; '
    "./hmm-tests",
    "madv_populate": "./madv_populate",
    "memfd_secret": "./memfd_secret",
    "ksm_tests merge": "./ksm_tests -M -p 10",
    "ksm_tests unmerge": "./ksm_tests -U",
    "ksm_tests zero pages": "./ksm_tests -Z -p 10 -z 0",
    "ksm_tests the zero page": "./ksm_tests -Z -p 10 -z 1",
    "ksm_tests across nodes": "./ksm_tests -N -m 1",
    "ksm_tests within nodes": "./ksm_tests -N -m 0",
    "protection_keys": "./protection_keys",
    "soft-dirty": "./soft-dirty",
    "khugepaged": _KHUGEPAGED,
    "split_huge_page_test": "./split_huge_page_test",
    "transhuge-stress": "timeout 20 ./transhuge-stress 300; [ $? = 124 ]",
    "migration": "./migration",
}

SELFTEST_SUITE = Suite(
    "kernel's mm selftests",
    tuple(Test(name, f"cd {SELFTESTS} && {script}", 900) for name, script in _SELFTESTS.items()),
    before=f"cd {SELFTESTS} && mkdir -p huge && mount -t hugetlbfs none huge && "
    "echo 160 >/proc/sys/vm/nr_hugepages && cat /proc/sys/vm/nr_hugepages",
    memory_mib=2048,
    numa_nodes=2,
)

_MEMORY_STRESSORS = (
    *("bigheap", "brk", "dev-shm", "madvise", "malloc", "mcontend", "membarrier", "memfd"),
    *("memhotplug", "memrate", "memthrash", "mincore", "misaligned", "mlock", "mlockmany", "mmap"),
    *("mmapaddr", "mmapfixed", "mmapfork", "mmaphuge", "mmapmany", "mprotect", "mremap", "msync"),
    *("msyncmany", "munmap", "numa", "oom-pipe", "pagemove", "pageswap", "physpage", "pkey"),
    *("ramfs", "randlist", "remap", "resources", "rmap", "secretmem", "shm", "shm-sysv", "stack"),
    *("stackmmap", "stream", "swap", "tlb-shootdown", "tmpfs", "tree", "userfaultfd", "vm"),
    *("vm-addr", "vm-rw", "vm-segv", "vm-splice", "zero"),
)
_KERNEL_STRESSORS = (
    *("aio", "dentry", "dir", "dirmany", "epoll", "eventfd", "io-uring", "pipe", "pipeherd"),
    *("sendfile", "sock", "sockmany", "sockpair", "splice", "tee", "udp", "utime"),
)
_FORK_STRESSORS = ("clone", "daemon", "exec", "fork", "pthread", "spawn", "vfork", "vforkmany")


def _stress(name: str, words: str) -> Test:
    command = f"stress-ng {words} --timeout {STRESS}s --verify --temp-path /tmp --no-rand-seed"
    # 3 and 4: the machine has not what it needs; and 0 where no stressor has begun.
    script = f"cd /tmp; {command} >said 2>&1; code=$?; cat said; [ $code = 3 ] && code=4; "
    return Test(name, script + "grep -q 'No stress workers' said && code=4; exit $code", 900)


STRESS_SUITE = Suite(
    "stress-ng: memory",
    tuple(_stress(name, f"--{name} 2") for name in (*_MEMORY_STRESSORS, *_KERNEL_STRESSORS)),
    before="mkdir -p /swap; dd if=/dev/zero of=/swap/file bs=1M count=256 2>/dev/null",
)

FORK_SUITE = Suite(
    "fork storms",
    (
        *(_stress(name, f"--{name} 16") for name in _FORK_STRESSORS),
        _stress("fork in full memory", "--fork 16 --vm 2 --vm-bytes 70% --vm-keep"),
        _stress("fork with huge mappings", "--mmapfork 4 --fork 8 --bigheap 1"),
        Test(
            "hundreds at once",
            "before=$(grep oom_kill /proc/vmstat); for i in $(seq 800); do sleep 5 & done; wait; "
            '[ "$before" = "$(grep oom_kill /proc/vmstat)" ]',
            900,
        ),
    ),
)

#: Fails where anything else than the one that takes it all is killed, where more is free then than
#: reserves, and where memory does not come back. A kernel with a border has a reserve on each side:
#: a zone's minimum on one, half as much again on the other.
_OUT_OF_MEMORY = """
echo 2147483647 >/proc/sys/vm/max_map_count
echo "take KIND 100000 all" | /host/scatter
kills=$(awk '/^oom_kill / {print $2}' /proc/vmstat)
victims=$(/host/busybox dmesg | \
sed -n 's/.*Killed process [0-9]* (\\([^)]*\\)).*/\\1/p' | sort | uniq -c)
free=$(/host/busybox dmesg | sed -n 's/^.* free:\\([0-9]*\\) free_pcp.*/\\1/p' | tail -1)
total=$(awk '/^MemTotal/ {print $2}' /proc/meminfo)
available=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
dd if=/dev/zero of=/dev/shm/file bs=1M count=100 2>/dev/null || exit 1
echo "$kills killed ($victims), $((free * 4)) kB free then, $available of $total kB after"
[ "$kills" = 1 ] && [[ "$victims" = *scatter* ]] &&
    [ $((free * 4)) -le $((3 * $(cat /proc/sys/vm/min_free_kbytes))) ] &&
    [ $((available * 10)) -gt $((total * 8)) ]
"""
_CLASSES = ("anonymous", "tables", "pipes", "sockets", "areas")
_IN_A_GROUP = """
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir -p /sys/fs/cgroup/few && echo 100M >/sys/fs/cgroup/few/memory.max
( echo $BASHPID >/sys/fs/cgroup/few/cgroup.procs; COMMAND ); code=$?
rm -f /dev/shm/file; rmdir /sys/fs/cgroup/few
echo "ended with $code"
[ $code = 137 ] && grep -x 'oom_kill 1' /proc/vmstat
"""

MEMORY_SUITE = Suite(
    "out of memory",
    (
        *(Test(kind, _OUT_OF_MEMORY.replace("KIND", kind), 3600) for kind in _CLASSES),
        Test(
            "tmpfs",
            "mkdir -p /mnt; mount -t tmpfs -o size=90% full /mnt; "
            "dd if=/dev/zero of=/mnt/file bs=1M; "
            "[ $? = 1 ] && rm /mnt/file && umount /mnt && grep -x 'oom_kill 0' /proc/vmstat",
            900,
        ),
        Test(
            "anonymous in a group",
            _IN_A_GROUP.replace(
                "COMMAND", "echo 'take anonymous 1000 all' | exec /host/scatter; exit 137"
            ),
        ),
        Test(
            "tmpfs in a group",
            _IN_A_GROUP.replace("COMMAND", "exec dd if=/dev/zero of=/dev/shm/file bs=1M count=150"),
        ),
    ),
    memory_mib=768,
    is_each_alone=True,
)

#: Programs of its own take memory until only so many MiB are free.
_FILLED = """
mkdir -p /tmp/job && cd /tmp/job
(echo 'fill FREE'; sleep 1000000) | /host/scatter >said &
until [ -s said ]; do sleep 0.1; done; cat said
"""
_NOBODY_KILLED = "\nresult=$?; [ $result = 0 ] && grep -x 'oom_kill 0' /proc/vmstat\n"
_COMPILE = """
for file in $(seq 16); do
    { for i in $(seq 15); do
        echo "int f_${file}_$i(int n) { int a[64], s = $i;"
        echo "for (int j = 0; j < 64; j++) a[j] = n * j;"
        echo "for (int j = 1; j < 64; j++) for (int k = 0; k < j; k++)"
        echo "s += a[j] ^ (a[k] * $i + $file);"
        echo "switch (s & 7) { case 0: return s; case 1: return s * 3; case 2: return s / 5; }"
        echo "return -s; }"
    done; } >f$file.c
done
{ for file in $(seq 16); do echo "int f_${file}_1(int);"; done
  echo "#include <stdio.h>"; echo "int main(void) { unsigned s = 0;"
  for file in $(seq 16); do echo "s += f_${file}_1($file);"; done
  echo 'printf("%u\\n", s); return 0; }'; } >main.c
printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\\n\\tgcc -o program $^\\n' >Makefile
make -s -j4 CC=gcc CFLAGS=-O2 && ./program
"""
_SERVE = """
mkdir -p /tmp/web/files && cd /tmp/web
for i in $(seq 50); do head -c $((i * 8000)) /dev/zero >files/$i; done
cat >nginx.conf <<END
user root;
worker_processes 2;
error_log /tmp/web/errors;
pid /tmp/web/pid;
events { worker_connections 512; }
http { access_log off; server { listen 127.0.0.1:80; root /tmp/web/files; } }
END
nginx -c /tmp/web/nginx.conf || exit 1
for i in 1 10 50; do
    ab -q -n 600 -c 50 http://127.0.0.1/$i >said || exit 1
    grep -x 'Failed requests:        0' said && grep -x 'Complete requests:      600' said || exit 1
    ab -q -k -n 1000 -c 100 http://127.0.0.1/$i >said || exit 1
    grep -x 'Failed requests:        0' said || exit 1
done
[ ! -s errors ]
"""
_MEMCACHED = "memcached -u root -m 200 -l 127.0.0.1 -c 256 -d || exit 1; sleep 1; "
_SLAP = "memcslap --servers=127.0.0.1:11211 --concurrency=16 --execute-number=1000"

PROGRAM_SUITE = Suite(
    "programs in full memory",
    (
        Test("compile job", _FILLED.replace("FREE", "260") + _COMPILE + _NOBODY_KILLED, 3600),
        Test("nginx under ab", _FILLED.replace("FREE", "120") + _SERVE + _NOBODY_KILLED, 1800),
        Test(
            "memcached under memcslap",
            _FILLED.replace("FREE", "320")
            + f"{_MEMCACHED} {_SLAP} --test=set && {_SLAP} --test=get --flush && "
            "memcstat --servers=127.0.0.1:11211 | grep -E 'curr_items|bytes:'" + _NOBODY_KILLED,
            1800,
        ),
        Test("memcached's protocol", f"{_MEMCACHED} memccapable -h 127.0.0.1 -p 11211", 900),
    ),
    is_each_alone=True,
)

SUITES = {
    "selftests": SELFTEST_SUITE,
    "oom": MEMORY_SUITE,
    "programs": PROGRAM_SUITE,
    "fork": FORK_SUITE,
    "stress": STRESS_SUITE,
}
