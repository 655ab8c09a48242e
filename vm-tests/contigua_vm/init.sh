#!/bin/sh
# The guest's first process: mounts what programs expect, then runs the commands that arrive on the
# serial line on PCI. One command is one line "NUMBER SECONDS BASE64-OF-A-SCRIPT"; its answer stands
# between "@begin NUMBER EXIT-CODE" and "@end NUMBER": what it said, gzip in base64.
/bin/busybox mkdir -p /bin /usr/bin /sbin /usr/sbin /var/lib
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev 2>/dev/null || true
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs -o size=64m tmp /tmp
mount -t tmpfs -o size=16m run /run
mkdir -p /dev/pts /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ifconfig lo 127.0.0.1 up
for module in /modules/*.ko; do
    [ -e "$module" ] && { insmod "$module" || echo "insmod $module failed"; }
done
ulimit -n 1000000
for device in /sys/class/tty/ttyS*; do
    case $(readlink -f $device/device) in */pci0000*) line=/dev/${device##*/} ;; esac
done
stty -F $line raw -echo
exec 3<>$line

# A process of its own: to the first one go the signals of all orphans that end, and a shell's `read`
# that is interrupted by one forgets what it has read of a line.
serve() {
    # It may not be killed for memory; what it runs may.
    echo -1000 >/proc/self/oom_score_adj
    echo "@ready" >&3
    while read -r number limit script <&3; do
        echo "$script" | base64 -d >/run/script
        timeout -s KILL "$limit" sh -c 'echo 0 >/proc/self/oom_score_adj; exec sh /run/script' \
            >/run/said 2>&1 </dev/null 3>&-
        code=$?
        {
            echo "@begin $number $code"
            gzip -c /run/said | base64
            echo "@end $number"
        } >&3
    done
}
(serve)
poweroff -f
