/* Scatters kernel memory that cannot move over all of physical memory, as years of service do.
 *
 * It fills memory with movable pages first, then trades them one by one: it gives single pages back
 * at random places and asks the kernel for as much memory of its own, which lands in their frames.
 *
 * Commands, one a line on standard input, each answered by one line ("ok ..." or "failed ..."):
 *
 *   fill MIB            anonymous memory until only MIB are free
 *   shed MIB            give MIB of it back, at random pages
 *   take KIND MIB TAG   kernel memory: pipes, sockets, tables, files, mix (of these), areas; or
 *                       anonymous memory that is not given back page by page
 *   trade KIND MIB TAG RATE
 *                       take and shed by turns, RATE MiB a second, so that as much stays free as after
 *                       the last fill or shed
 *   pin MIB TAG         pin anonymous pages at random places for long, as a device's buffers are
 *   splice N TAG        put N anonymous pages into pipes as they are, so that they cannot be migrated
 *   drop TAG            give all kernel memory of a tag back
 *   clear               give all anonymous memory back
 *   free                free memory in MiB
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
#define CHUNK (16 * MIB)
#define TAGS 64

/* Something of the kernel's that is held: descriptors, a mapping, or a file's number. */
struct held {
    enum { DESCRIPTORS, RING, MAPPING, NAME } kind;
    int first, second;
    void *address;
    size_t bytes;
    unsigned long name;
};

static struct {
    char name[32];
    struct held *held;
    size_t count, room;
} tags[TAGS];

static char **pages; /* the anonymous pages that are there */
static size_t page_count, page_room;
static unsigned long names;
static unsigned long left_free; /* bytes that the last fill or shed left */
static uint64_t seed = 88172645463325252ULL;

static uint64_t any(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static unsigned long free_bytes(void) {
    struct sysinfo info;
    sysinfo(&info);
    return info.freeram * info.mem_unit;
}

static int fill(unsigned long leave) {
    left_free = leave;
    while (free_bytes() > leave + CHUNK / 4) {
        unsigned long wanted = free_bytes() - leave;
        if (wanted > CHUNK)
            wanted = CHUNK;
        wanted = wanted / PAGE * PAGE;
        char *chunk = mmap(NULL, wanted, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (chunk == MAP_FAILED)
            return -1;
        for (char *page = chunk; page < chunk + wanted; page += PAGE) {
            if (page_count == page_room) {
                page_room = page_room ? 2 * page_room : 1 << 16;
                pages = realloc(pages, page_room * sizeof *pages);
                if (!pages)
                    return -1;
            }
            pages[page_count++] = page;
        }
    }
    return 0;
}

static void shed(unsigned long bytes) {
    for (unsigned long done = 0; done < bytes && page_count; done += PAGE) {
        size_t index = any() % page_count;
        madvise(pages[index], PAGE, MADV_DONTNEED);
        pages[index] = pages[--page_count];
    }
}

static void clear(void) {
    while (page_count)
        madvise(pages[--page_count], PAGE, MADV_DONTNEED);
}

static int tag_of(const char *name) {
    for (int tag = 0; tag < TAGS; tag++) {
        if (!tags[tag].name[0])
            snprintf(tags[tag].name, sizeof tags[tag].name, "%s", name);
        if (!strcmp(tags[tag].name, name))
            return tag;
    }
    return -1;
}

static int keep(int tag, struct held held) {
    if (tags[tag].count == tags[tag].room) {
        size_t room = tags[tag].room ? 2 * tags[tag].room : 1024;
        void *larger = realloc(tags[tag].held, room * sizeof held);
        if (!larger)
            return -1;
        tags[tag].held = larger;
        tags[tag].room = room;
    }
    tags[tag].held[tags[tag].count++] = held;
    return 0;
}

static const char data[16 * PAGE];

/* Each takes about as much as it returns, in bytes; 0 is an error. */

static size_t take_pipe(int tag) {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK))
        return 0;
    size_t bytes = 0;
    ssize_t written;
    while (bytes < 16 * PAGE && (written = write(ends[1], data, PAGE)) > 0)
        bytes += written;
    return keep(tag, (struct held){.kind = DESCRIPTORS, .first = ends[0], .second = ends[1]}) ? 0 : bytes;
}

static size_t take_socket(int tag) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends))
        return 0;
    size_t bytes = 0;
    ssize_t written;
    while (bytes < 64 * PAGE && (written = write(ends[1], data, sizeof data)) > 0)
        bytes += written;
    return keep(tag, (struct held){.kind = DESCRIPTORS, .first = ends[0], .second = ends[1]}) ? 0 : bytes;
}

/* One page table, of the zero page, for each 2 MiB of addresses. */
static size_t take_tables(int tag) {
    size_t bytes = 32 * MIB;
    char *area = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED)
        return 0;
    madvise(area, bytes, MADV_NOHUGEPAGE);
    for (char *page = area; page < area + bytes; page += 2 * MIB)
        (void)*(volatile char *)page;
    return keep(tag, (struct held){.kind = MAPPING, .address = area, .bytes = bytes})
               ? 0
               : bytes / (2 * MIB) * PAGE;
}

/* Empty files: an inode and a dentry each. */
static size_t take_files(int tag) {
    for (int i = 0; i < 64; i++) {
        char path[64];
        unsigned long name = names++;
        snprintf(path, sizeof path, "/files/%lu/%lu", name / 1024, name);
        int file = open(path, O_CREAT | O_WRONLY, 0600);
        if (file < 0 && errno == ENOENT) {
            char folder[64];
            snprintf(folder, sizeof folder, "/files/%lu", name / 1024);
            mkdir(folder, 0700);
            file = open(path, O_CREAT | O_WRONLY, 0600);
        }
        if (file < 0)
            return 0;
        close(file);
        if (keep(tag, (struct held){.kind = NAME, .name = name}))
            return 0;
    }
    return 64 * 1024;
}

/* One description of an area, an object of the kernel's, for each page of addresses. */
static size_t take_areas(int tag) {
    size_t bytes = 4 * MIB;
    char *area = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED)
        return 0;
    for (char *page = area; page < area + bytes; page += 2 * PAGE)
        if (mprotect(page, PAGE, PROT_READ))
            return 0;
    return keep(tag, (struct held){.kind = MAPPING, .address = area, .bytes = bytes})
               ? 0
               : bytes / PAGE * 256;
}

static size_t take_anonymous(int tag) {
    char *area = mmap(NULL, MIB, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (area == MAP_FAILED)
        return 0;
    return keep(tag, (struct held){.kind = MAPPING, .address = area, .bytes = MIB}) ? 0 : MIB;
}

static int take(const char *kind, unsigned long bytes, const char *name) {
    int tag = tag_of(name);
    if (tag < 0)
        return -1;
    size_t (*const kinds[])(int) = {take_pipe,  take_tables, take_socket,
                                     take_files, take_areas,  take_anonymous};
    const char *const called[] = {"pipes", "tables", "sockets", "files", "areas", "anonymous"};
    static unsigned turn;
    for (unsigned long done = 0; done < bytes;) {
        size_t (*one)(int) = NULL;
        for (int i = 0; i < 6; i++)
            if (!strcmp(kind, called[i]))
                one = kinds[i];
        if (!strcmp(kind, "mix"))
            one = kinds[turn++ % 4];
        size_t got = one ? one(tag) : 0;
        if (!got)
            return -1;
        done += got;
    }
    return 0;
}

/* Registers each page as a buffer of an io_uring, which keeps it pinned until the ring is closed. The
 * program no longer counts it among those that it may give back. */
static int pin(unsigned long bytes, const char *name) {
    static struct iovec buffers[1 << 14]; /* as many as a ring may have */
    size_t most = sizeof buffers / sizeof *buffers;
    int tag = tag_of(name);
    for (size_t left = bytes / PAGE; left;) {
        size_t count = left < most ? left : most;
        struct io_uring_params params = {0};
        int ring = syscall(SYS_io_uring_setup, 1, &params);
        if (tag < 0 || ring < 0 || page_count < count)
            return -1;
        for (size_t i = 0; i < count; i++) {
            size_t index = any() % page_count;
            buffers[i] = (struct iovec){pages[index], PAGE};
            pages[index] = pages[--page_count];
        }
        if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, buffers, count) ||
            keep(tag, (struct held){.kind = RING, .first = ring}))
            return -1;
        left -= count;
    }
    return 0;
}

static int splice_pages(unsigned long count, const char *name) {
    int tag = tag_of(name);
    for (unsigned long done = 0; done < count; done++) {
        int ends[2];
        if (tag < 0 || !page_count || pipe2(ends, O_NONBLOCK))
            return -1;
        struct iovec page = {pages[any() % page_count], PAGE};
        if (vmsplice(ends[1], &page, 1, 0) != (ssize_t)PAGE ||
            keep(tag, (struct held){.kind = DESCRIPTORS, .first = ends[0], .second = ends[1]}))
            return -1;
    }
    return 0;
}

static void drop(const char *name) {
    int tag = tag_of(name);
    if (tag < 0)
        return;
    for (size_t i = 0; i < tags[tag].count; i++) {
        struct held *held = &tags[tag].held[i];
        if (held->kind == DESCRIPTORS) {
            close(held->first);
            close(held->second);
        } else if (held->kind == RING) {
            close(held->first);
        } else if (held->kind == MAPPING) {
            munmap(held->address, held->bytes);
        } else {
            char path[64];
            snprintf(path, sizeof path, "/files/%lu/%lu", held->name / 1024, held->name);
            unlink(path);
            /* A folder goes with its last file. */
            *strrchr(path, '/') = 0;
            rmdir(path);
        }
    }
    free(tags[tag].held);
    memset(&tags[tag], 0, sizeof tags[tag]);
}

static int trade(const char *kind, unsigned long bytes, const char *name, unsigned rate) {
    const unsigned long step = MIB / 4;
    /* What the kernel takes is more than what is counted here: it is what must be shed for as much
       to stay free. */
    for (unsigned long taken = 0; taken < bytes;) {
        unsigned long now = free_bytes(), missing = 0;
        if (now < left_free) {
            missing = left_free - now;
            shed(missing);
            taken += missing;
        }
        if (take(kind, step, name))
            return -1;
        unsigned long wait = 1000000000UL / (MIB / step) / rate;
        if (missing > step)
            wait = wait * (missing / step);
        struct timespec pause = {wait / 1000000000UL, wait % 1000000000UL};
        nanosleep(&pause, NULL);
    }
    return 0;
}

int main(void) {
    char line[128], kind[32], name[32];
    unsigned long mib;
    unsigned rate;
    mkdir("/files", 0700);
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* pages are given back one by one */
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        int failed = 0;
        if (sscanf(line, "fill %lu", &mib) == 1)
            failed = fill(mib * MIB);
        else if (sscanf(line, "shed %lu", &mib) == 1)
            shed(mib * MIB), left_free = free_bytes();
        else if (sscanf(line, "take %31s %lu %31s", kind, &mib, name) == 3)
            failed = take(kind, mib * MIB, name);
        else if (sscanf(line, "trade %31s %lu %31s %u", kind, &mib, name, &rate) == 4 && rate)
            failed = trade(kind, mib * MIB, name, rate);
        else if (sscanf(line, "pin %lu %31s", &mib, name) == 2)
            failed = pin(mib * MIB, name);
        else if (sscanf(line, "splice %lu %31s", &mib, name) == 2)
            failed = splice_pages(mib, name);
        else if (sscanf(line, "drop %31s", name) == 1)
            drop(name);
        else if (!strcmp(line, "clear\n"))
            clear();
        else if (strcmp(line, "free\n")) {
            printf("failed: %s", line);
            continue;
        }
        line[strcspn(line, "\n")] = 0;
        if (failed)
            printf("failed: %s: %s\n", line, strerror(errno));
        else
            printf("ok %s: %lu MiB free, %lu anonymous\n", line, free_bytes() / MIB,
                   page_count * PAGE / MIB);
    }
    return 0;
}
