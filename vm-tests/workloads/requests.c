/* Records what is asked of the page allocator: every block that it hands out and gets back.
 *
 * The kernel's trace events go from its ring buffer, as packed records, to memory that the guest
 * shares with its host (QEMU's ivshmem), a file there: nothing that the record is written through
 * asks for memory in the guest. Where memory begins is read from /proc/kpageflags and, for the order of free lists and
 * the types of pageblocks, from the kernel's own structures (/proc/kcore). One processor only.
 *
 * Commands, one a line on standard input, each answered by one line ("ok ..." or "failed ..."):
 *
 *   start       look at memory and record from now on
 *   mark NAME   look at memory again
 *   stop        write the end
 *
 * The record is described in crates/machine/src/requests/stream.rs, which reads it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing/"
#define DEVICES "/sys/bus/pci/devices/"
#define PAGE 4096
#define BUFFER_KB "16384"
#define PAGEBLOCK 512UL
#define SECTION_PAGES 32768UL
#define PAGE_STRUCT 64
#define ORDERS 11
/* Looks at memory until nobody asked for any meanwhile. */
#define LOOKS 20

enum op { ALLOC = 1, FREE, FALLBACK, MOVED_FROM, MOVED_TO, TIME, BLOB, LOOKED, END };
enum blob { KERNEL = 1, ZONES, TYPES, FLAGS, BLOCKS, LISTS, NAME };

static const char *problem; /* why there is no record */
static char problem_text[256];

static int fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem_text, sizeof problem_text, format, arguments);
    va_end(arguments);
    problem = problem_text;
    return -1;
}

/* --- the way out ------------------------------------------------------------------------------ */

static uint64_t written;
static int is_telling; /* the start has been written */
static uint8_t *shared; /* how many bytes there are, and the bytes */
static size_t shared_bytes, shared_used = 8;

static void put(const void *data, size_t bytes) {
    if (bytes > shared_bytes - shared_used) {
        fail("the record is longer than %zu bytes", shared_bytes);
        return;
    }
    memcpy(shared + shared_used, data, bytes);
    shared_used += bytes;
    uint64_t length = shared_used - 8;
    memcpy(shared, &length, sizeof length);
}

/* The memory is the third resource of a device that QEMU makes (its docs/specs/ivshmem-spec). */
static int open_shared(void) {
    DIR *devices = opendir(DEVICES);
    struct dirent *device;
    while (devices && (device = readdir(devices))) {
        char path[300], text[32] = "";
        snprintf(path, sizeof path, DEVICES "%s/device", device->d_name);
        int file = open(path, O_RDONLY);
        if (file < 0)
            continue;
        ssize_t got = read(file, text, sizeof text - 1);
        close(file);
        if (got < 6 || strncmp(text, "0x1110", 6))
            continue;
        snprintf(path, sizeof path, DEVICES "%s/resource2", device->d_name);
        struct stat size;
        file = open(path, O_RDWR);
        if (file < 0 || fstat(file, &size))
            return fail("%s: %s", path, strerror(errno));
        shared_bytes = size.st_size;
        shared = mmap(NULL, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        closedir(devices);
        return shared == MAP_FAILED ? fail("%s: %s", path, strerror(errno)) : 0;
    }
    return fail("the guest shares no memory with its host");
}

static void record(enum op op, unsigned order, unsigned type, unsigned extra, uint64_t frame) {
    uint64_t word = op | order << 4 | (type & 0xff) << 8 | (uint64_t)(extra & 0xffff) << 16 | frame << 32;
    put(&word, sizeof word);
    written++;
}

static void blob(enum blob kind, const void *data, size_t bytes) {
    static const char zeros[8];
    record(BLOB, 0, kind, 0, bytes);
    put(data, bytes);
    put(zeros, -bytes & 7);
}

/* --- the kernel's memory ---------------------------------------------------------------------- */

static struct { uint64_t start, end, offset; } areas[64];
static int area_count, core = -1, flags_file = -1;
static uint64_t vmemmap, frames, sections;

static int text_of(const char *path, char *text, size_t room) {
    int file = open(path, O_RDONLY);
    if (file < 0)
        return fail("%s: %s", path, strerror(errno));
    size_t length = 0;
    ssize_t got;
    while (length < room && (got = read(file, text + length, room - length)) > 0)
        length += got;
    close(file);
    return length == room ? fail("%s is longer than %zu", path, room) : (int)length;
}

static int core_read(uint64_t address, void *to, size_t bytes) {
    for (int i = 0; i < area_count; i++)
        if (areas[i].start <= address && address + bytes <= areas[i].end)
            if (pread(core, to, bytes, areas[i].offset + address - areas[i].start) == (ssize_t)bytes)
                return 0;
    return fail("/proc/kcore does not have %#lx", address);
}

/* Addresses of two symbols, in one pass over a long file. */
static int symbols(const char *const names[2], uint64_t addresses[2]) {
    FILE *file = fopen("/proc/kallsyms", "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while (file && (length = getline(&line, &room, file)) > 0) {
        line[length - 1] = 0;
        for (int i = 0; i < 2; i++)
            if (length > 19 && !strcmp(line + 19, names[i]))
                addresses[i] = strtoull(line, NULL, 16);
    }
    free(line);
    if (file)
        fclose(file);
    return addresses[0] && addresses[1] ? 0 : fail("/proc/kallsyms has no %s or no %s", names[0], names[1]);
}

static int open_core(void) {
    struct { uint8_t ident[32]; uint64_t heads; uint8_t rest[14]; uint16_t size, count; } elf;
    core = open("/proc/kcore", O_RDONLY);
    if (core < 0 || pread(core, &elf, sizeof elf, 0) != sizeof elf)
        return fail("/proc/kcore: %s", strerror(errno));
    for (int i = 0; i < elf.count && area_count < 64; i++) {
        struct { uint32_t type, flags; uint64_t offset, start, physical, bytes, rest[2]; } head;
        if (pread(core, &head, sizeof head, elf.heads + (uint64_t)i * elf.size) != sizeof head)
            return fail("/proc/kcore is cut short");
        if (head.type == 1) {
            areas[area_count].start = head.start;
            areas[area_count].end = head.start + head.bytes;
            areas[area_count++].offset = head.offset;
        }
    }
    static const char *const names[2] = {"vmemmap_base", "mem_section"};
    uint64_t addresses[2] = {0}, root;
    if (symbols(names, addresses) || core_read(addresses[0], &vmemmap, 8) ||
        core_read(addresses[1], &root, 8) || core_read(root, &sections, 8))
        return -1;
    return 0;
}

/* --- what memory looks like ------------------------------------------------------------------- */

static uint64_t *flags;                          /* /proc/kpageflags */
static uint8_t *blocks;                          /* types of pageblocks */
static struct { uint64_t flags; uint64_t count; } *runs;
static size_t run_count;
static uint32_t *listed;                         /* free blocks, list by list, newest first */
static size_t listed_count;
static uint8_t *seen;
static uint8_t *pages;                           /* struct page of each frame */
static char types_text[16384], zones_text[65536];
static int types_length, zones_length;

#define BUDDY (1ULL << 10)
#define NOPAGE (1ULL << 20)

static int look_at_flags(void) {
    size_t bytes = frames * 8, done = 0;
    while (done < bytes) {
        ssize_t got = pread(flags_file, (char *)flags + done, bytes - done, done);
        if (got <= 0)
            return fail("/proc/kpageflags: %s", got ? strerror(errno) : "short");
        done += got;
    }
    run_count = 0;
    for (uint64_t frame = 0; frame < frames; frame++) {
        if (run_count && runs[run_count - 1].flags == flags[frame])
            runs[run_count - 1].count++;
        else
            runs[run_count].flags = flags[frame], runs[run_count++].count = 1;
    }
    return 0;
}

/* Pageblocks of a type in all zones, by /proc/pagetypeinfo. */
static int blocks_of_types(long counts[6]) {
    memset(counts, 0, 6 * sizeof *counts);
    char *line = strstr(types_text, "Number of blocks type");
    if (!line)
        return fail("/proc/pagetypeinfo has no number of blocks");
    while ((line = strchr(line, '\n')) && *++line) {
        long n[6] = {0};
        if (sscanf(line, "Node %*d, zone %*s %ld %ld %ld %ld %ld %ld", n, n + 1, n + 2, n + 3, n + 4, n + 5) < 4)
            continue;
        for (int type = 0; type < 6; type++)
            counts[type] += n[type];
    }
    return 0;
}

/* The structures' sizes differ between kernels; the right ones give the numbers that the kernel does. */
static int look_at_blocks(void) {
    static const struct { unsigned section, usage; } layouts[] = {{32, 8}, {32, 24}, {16, 8}, {16, 24}, {32, 16}};
    long wanted[6], counts[6];
    if (blocks_of_types(wanted))
        return -1;
    for (size_t layout = 0; layout < sizeof layouts / sizeof *layouts; layout++) {
        memset(counts, 0, sizeof counts);
        for (uint64_t frame = 0; frame < frames; frame += SECTION_PAGES) {
            uint64_t usage = 0, words[4] = {0};
            if (core_read(sections + frame / SECTION_PAGES * layouts[layout].section + 8, &usage, 8) == 0 && usage)
                (void)core_read(usage + layouts[layout].usage, words, sizeof words);
            for (uint64_t i = 0; i < SECTION_PAGES / PAGEBLOCK && frame + i * PAGEBLOCK < frames; i++) {
                uint8_t type = words[i / 16] >> i % 16 * 4 & 7;
                blocks[frame / PAGEBLOCK + i] = type;
                if (type < 6 && !(flags[frame + i * PAGEBLOCK] & NOPAGE))
                    counts[type]++;
            }
        }
        problem = NULL;
        if (!memcmp(counts, wanted, sizeof counts))
            return 0;
    }
    return fail("pageblocks' types are not where they are thought to be: %ld %ld %ld instead of %ld %ld %ld",
                counts[0], counts[1], counts[2], wanted[0], wanted[1], wanted[2]);
}

/* All of struct page, by pages of it. What is no memory is not there and reads 0. */
static void look_at_pages(void) {
    for (uint64_t at = 0; at < frames * PAGE_STRUCT; at += PAGE)
        if (core_read(vmemmap + at, pages + at, PAGE)) {
            memset(pages + at, 0, PAGE);
            problem = NULL;
        }
}

/* A word of a frame's struct page: lru is at 8, private at 40, the number of users at 52. */
static uint64_t page_word(uint64_t frame, unsigned offset) {
    uint64_t word;
    memcpy(&word, pages + frame * PAGE_STRUCT + offset, sizeof word);
    return word;
}

/* The frame whose link is at an address; none if that is no frame's. */
static uint64_t linked(uint64_t address) {
    uint64_t offset = address - 8 - vmemmap;
    return offset < frames * PAGE_STRUCT && offset % PAGE_STRUCT == 0 ? offset / PAGE_STRUCT : UINT64_MAX;
}

/* Free, on a list of the allocator's or else of a processor's: no flag, and nobody uses it. */
static int is_on_a_list(uint64_t frame, int is_free) {
    if (is_free)
        return !!(flags[frame] & BUDDY);
    return !flags[frame] && !(uint32_t)(page_word(frame, 48) >> 32);
}

/* From any block on a list to the list's head, which is no block, and from there along all of it. */
static void follow(uint64_t frame, int is_free) {
    uint64_t at = frame, head = 0, link;
    for (uint64_t steps = 0; steps < frames && !head; steps++) {
        uint64_t next = linked(page_word(at, 8));
        if (next == at)
            return;
        if (next == UINT64_MAX)
            head = page_word(at, 8);
        else
            at = next;
    }
    size_t before = listed_count;
    /* The beginning of a list, and of which kind. */
    listed[listed_count++] = UINT32_MAX - is_free;
    if (core_read(head, &link, sizeof link)) {
        problem = NULL; /* a frame that is on no list may have anything there */
        listed_count = before;
        return;
    }
    while ((at = linked(link)) != UINT64_MAX && !seen[at] && is_on_a_list(at, is_free)) {
        seen[at] = 1;
        listed[listed_count++] = at;
        link = page_word(at, 8);
    }
    if (link != head)
        listed_count = before;
}

/* Only the first frame of a free block is on a list. After the start nobody needs the order of the
   allocator's lists. */
static int look_at_lists(void) {
    memset(seen, 0, frames);
    listed_count = 0;
    for (uint64_t frame = 0; frame < frames;) {
        uint64_t order = 0;
        if (flags[frame] & BUDDY) {
            order = page_word(frame, 40);
            if (order >= ORDERS)
                return fail("a free block of order %lu at %#lx", order, frame);
            if (!seen[frame] && !is_telling)
                follow(frame, 1);
            if (!seen[frame] && !is_telling)
                return fail("the free block at %#lx is on no list", frame);
        } else if (!seen[frame] && is_on_a_list(frame, 0)) {
            follow(frame, 0);
        }
        frame += 1UL << order;
    }
    return 0;
}

static int look(void) {
    types_length = text_of("/proc/pagetypeinfo", types_text, sizeof types_text - 1);
    zones_length = text_of("/proc/zoneinfo", zones_text, sizeof zones_text - 1);
    if (types_length < 0 || zones_length < 0)
        return -1;
    types_text[types_length] = 0;
    if (look_at_flags() || look_at_blocks())
        return -1;
    look_at_pages();
    return look_at_lists();
}

static void tell(const char *name) {
    blob(NAME, name, strlen(name));
    blob(ZONES, zones_text, zones_length);
    blob(TYPES, types_text, types_length);
    blob(FLAGS, runs, run_count * sizeof *runs);
    blob(BLOCKS, blocks, frames / PAGEBLOCK);
    blob(LISTS, listed, listed_count * sizeof *listed);
    record(LOOKED, 0, 0, 0, frames);
}

/* --- the kernel's events ---------------------------------------------------------------------- */

struct field { unsigned offset, size; };
static struct { unsigned id; struct field pfn, order, gfp, type, other_order, other_type, owned, to; } alloc, freed, fallback, moved;
static int raw = -1;
static uint64_t events, milliseconds;

static int field(const char *format, const char *name, struct field *field) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, " %s;", name);
    const char *at = strstr(format, wanted);
    if (!at || sscanf(at + strlen(wanted), "\toffset:%u;\tsize:%u;", &field->offset, &field->size) != 2)
        return fail("an event has no field %s", name);
    return 0;
}

static uint64_t value(const uint8_t *event, struct field field) {
    uint64_t value = 0;
    memcpy(&value, event + field.offset, field.size < 8 ? field.size : 8);
    return value;
}

static int set(const char *file, const char *text) {
    char path[256];
    snprintf(path, sizeof path, TRACING "%s", file);
    int out = open(path, O_WRONLY);
    if (out < 0 || write(out, text, strlen(text)) < 0) {
        fail("%s: %s", path, strerror(errno));
        if (out >= 0)
            close(out);
        return -1;
    }
    return close(out);
}

static int format_of(const char *event, char *text, size_t room, unsigned *id) {
    char path[256];
    snprintf(path, sizeof path, TRACING "events/%s/format", event);
    int length = text_of(path, text, room - 1);
    if (length < 0)
        return -1;
    text[length] = 0;
    const char *at = strstr(text, "ID: ");
    return at && sscanf(at, "ID: %u", id) == 1 ? 0 : fail("%s has no number", event);
}

static int open_events(void) {
    static char text[16384];
    /* Where compaction puts a page is in no event of the kernel's. */
    if (set("kprobe_events", "p:contigua/moved folio_migrate_flags to=%di:x64 from=%si:x64\n"))
        return -1;
    if (format_of("kmem/mm_page_alloc", text, sizeof text, &alloc.id) || field(text, "pfn", &alloc.pfn) ||
        field(text, "order", &alloc.order) || field(text, "gfp_flags", &alloc.gfp) ||
        field(text, "migratetype", &alloc.type))
        return -1;
    if (format_of("kmem/mm_page_free", text, sizeof text, &freed.id) || field(text, "pfn", &freed.pfn) ||
        field(text, "order", &freed.order))
        return -1;
    if (format_of("kmem/mm_page_alloc_extfrag", text, sizeof text, &fallback.id) ||
        field(text, "pfn", &fallback.pfn) || field(text, "alloc_order", &fallback.order) ||
        field(text, "fallback_order", &fallback.other_order) ||
        field(text, "alloc_migratetype", &fallback.type) ||
        field(text, "fallback_migratetype", &fallback.other_type) ||
        field(text, "change_ownership", &fallback.owned))
        return -1;
    if (format_of("contigua/moved", text, sizeof text, &moved.id) || field(text, "from", &moved.pfn) ||
        field(text, "to", &moved.to))
        return -1;
    if (set("buffer_size_kb", BUFFER_KB) || set("events/kmem/mm_page_alloc/enable", "1") ||
        set("events/kmem/mm_page_free/enable", "1") || set("events/kmem/mm_page_alloc_extfrag/enable", "1") ||
        set("events/contigua/moved/enable", "1"))
        return -1;
    raw = open(TRACING "per_cpu/cpu0/trace_pipe_raw", O_RDONLY | O_NONBLOCK);
    return raw < 0 ? fail("trace_pipe_raw: %s", strerror(errno)) : 0;
}

static uint64_t frame_of(uint64_t page) {
    return (page - vmemmap) / PAGE_STRUCT;
}

static void one_event(const uint8_t *event, uint64_t nanoseconds) {
    uint16_t id;
    memcpy(&id, event, 2);
    events++;
    if (!is_telling)
        return;
    if (nanoseconds / 1000000 > milliseconds) {
        milliseconds = nanoseconds / 1000000;
        record(TIME, 0, 0, 0, (uint32_t)milliseconds);
    }
    if (id == alloc.id) {
        /* No frame: the request failed. */
        if (value(event, alloc.pfn) < frames)
            record(ALLOC, value(event, alloc.order), value(event, alloc.type), value(event, alloc.gfp),
                   value(event, alloc.pfn));
    } else if (id == freed.id) {
        record(FREE, value(event, freed.order), 0, 0, value(event, freed.pfn));
    } else if (id == fallback.id) {
        unsigned extra = value(event, fallback.other_order) | value(event, fallback.other_type) << 4 |
                         value(event, fallback.owned) << 8;
        record(FALLBACK, value(event, fallback.order), value(event, fallback.type), extra,
               value(event, fallback.pfn));
    } else if (id == moved.id) {
        record(MOVED_FROM, 0, 0, 0, frame_of(value(event, moved.pfn)));
        record(MOVED_TO, 0, 0, 0, frame_of(value(event, moved.to)));
    }
}

/* A page of the ring buffer: a time, how much is in it, and events (the kernel's
   include/linux/ring_buffer.h). */
static int one_page(const uint8_t *page, size_t bytes) {
    uint64_t time, commit;
    memcpy(&time, page, 8);
    memcpy(&commit, page + 8, 8);
    if (commit & (3UL << 30))
        return fail("the kernel lost events");
    size_t end = 16 + (commit & 0xfffff);
    if (end > bytes)
        return fail("a page of events is cut short");
    for (size_t at = 16; at + 4 <= end;) {
        uint32_t head, more = 0;
        memcpy(&head, page + at, 4);
        if (at + 8 <= end)
            memcpy(&more, page + at + 4, 4);
        unsigned length = head & 31;
        uint64_t delta = head >> 5;
        if (length == 31) { /* a time as it is */
            time = delta | (uint64_t)more << 27 | time >> 59 << 59;
            at += 8;
            continue;
        }
        if (length == 29) { /* nothing */
            if (!delta)
                break;
            time += delta;
            at += 4 + more;
            continue;
        }
        if (length == 30) { /* a longer difference */
            time += delta | (uint64_t)more << 27;
            at += 8;
            continue;
        }
        time += delta;
        if (length) {
            one_event(page + at + 4, time);
            at += 4 + 4 * length;
        } else {
            one_event(page + at + 8, time);
            at += 4 + (more + 3) / 4 * 4;
        }
    }
    return 0;
}

static int drain(void) {
    static uint8_t page[PAGE];
    ssize_t got;
    while ((got = read(raw, page, sizeof page)) > 0)
        if (one_page(page, got))
            return -1;
    if (got < 0 && errno != EAGAIN)
        return fail("trace_pipe_raw: %s", strerror(errno));
    return 0;
}

/* Events that the kernel has no more room for are counted, too. */
static int check_losses(void) {
    static char text[4096];
    int length = text_of(TRACING "per_cpu/cpu0/stats", text, sizeof text - 1);
    if (length < 0)
        return -1;
    text[length] = 0;
    long overrun = -1, dropped = -1;
    for (char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        sscanf(line, "overrun: %ld", &overrun);
        sscanf(line, "dropped events: %ld", &dropped);
    }
    return overrun || dropped ? fail("the kernel lost %ld and %ld events", overrun, dropped) : 0;
}

/* --- commands --------------------------------------------------------------------------------- */

static int get_ready(void) {
    mkdir(TRACING, 0700);
    if (access(TRACING "events", F_OK) && mount("tracefs", TRACING, "tracefs", 0, NULL))
        return fail("tracefs: %s", strerror(errno));
    if (sysconf(_SC_NPROCESSORS_ONLN) != 1)
        return fail("more than one processor");
    if (open_shared())
        return -1;
    flags_file = open("/proc/kpageflags", O_RDONLY);
    static uint64_t some[512];
    ssize_t got;
    while (flags_file >= 0 && (got = pread(flags_file, some, sizeof some, frames * 8)) > 0)
        frames += got / 8;
    if (!frames || frames % PAGEBLOCK || frames >= UINT32_MAX)
        return fail("/proc/kpageflags: %lu frames", frames);
    flags = malloc(frames * 8);
    runs = malloc(frames * sizeof *runs);
    blocks = malloc(frames / PAGEBLOCK);
    listed = malloc(2 * frames * sizeof *listed);
    seen = malloc(frames);
    pages = malloc(frames * PAGE_STRUCT);
    /* Looking asks for no memory: all is there. */
    if (!flags || !runs || !blocks || !listed || !seen || !pages || mlockall(MCL_CURRENT | MCL_FUTURE))
        return fail("no memory: %s", strerror(errno));
    if (open_core() || look())
        return -1;
    return open_events();
}

/* Looks until nothing happened meanwhile, so that the look is between two events. Frames that a
   processor or compaction takes or gives back are in no event: then the lists contradict the flags. */
static int look_still(void) {
    for (int i = 0; i < LOOKS; i++) {
        if (drain())
            return -1;
        uint64_t before = events;
        problem = NULL;
        int failed = look();
        const char *why = problem;
        problem = NULL;
        if (drain() || check_losses())
            return -1;
        if (events == before && !failed)
            return 0;
        problem = why;
    }
    return problem ? -1 : fail("memory does not keep still");
}

static int start(void) {
    const uint64_t magic = 0x3173716572677463; /* "ctgreqs1" */
    struct utsname name;
    uname(&name);
    if (get_ready() || look_still())
        return -1;
    put(&magic, sizeof magic);
    blob(KERNEL, name.release, strlen(name.release));
    tell("start");
    is_telling = 1;
    return 0;
}

static int mark(const char *name) {
    if (look_still())
        return -1;
    tell(name);
    return 0;
}

static int stop(void) {
    if (drain() || check_losses())
        return -1;
    record(END, 0, 0, 0, (uint32_t)written);
    return 0;
}

int main(void) {
    char line[128], name[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct pollfd polled = {0, POLLIN, 0};
    for (;;) {
        if (poll(&polled, 1, is_telling ? 20 : -1) == 0) {
            if (!problem)
                drain();
            continue;
        }
        ssize_t got = read(0, line, sizeof line - 1);
        if (got <= 0)
            return 0;
        line[got] = 0;
        int failed = problem ? -1 : 0;
        if (!failed && !strcmp(line, "start\n"))
            failed = start();
        else if (!failed && sscanf(line, "mark %63s", name) == 1)
            failed = mark(name);
        else if (!failed && !strcmp(line, "stop\n"))
            failed = stop();
        else if (!failed)
            failed = fail("unknown command");
        line[strcspn(line, "\n")] = 0;
        if (failed)
            printf("failed: %s: %s\n", line, problem);
        else
            printf("ok %s: %lu events, %lu records, %zu free blocks\n", line, events, written, listed_count);
    }
}
