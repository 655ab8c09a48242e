/* Does a heap on HugeTLB pages work, and the children of its process? The argument is the size in KB
 * of the pages that the heap must lie on: 2048, 1048576, or 4 for ordinary memory; "mixed" for some
 * of both. */
#include "common.h"
#include <fcntl.h>
#include <spawn.h>

enum { PIECES = 40, PIECE = 1 << 20, SMALL = 20000 };
static char *pieces[PIECES];
static char *small[SMALL];

/* Size in KB of the pages of the mapping that holds an address. */
static long page_size(const void *address) {
    char line[512];
    unsigned long begin, end, at = (unsigned long)address;
    long size = -1;
    int inside = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    while (size < 0 && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) inside = begin <= at && at < end;
        if (inside) sscanf(line, "KernelPageSize: %ld", &size);
    }
    fclose(maps);
    return size;
}

/* What the kernel says of the page frame: 1 if it is HugeTLB's, 0 if not, -1 if it tells nobody. */
static int is_huge_frame(const void *address) {
    uint64_t entry = 0, flags = 0;
    int map = open("/proc/self/pagemap", O_RDONLY), all = open("/proc/kpageflags", O_RDONLY);
    if (map >= 0) CHECK(pread(map, &entry, 8, (uintptr_t)address / 4096 * 8) == 8);
    int known = all >= 0 && entry >> 63 && entry << 9 &&
                pread(all, &flags, 8, (entry & ((1ULL << 55) - 1)) * 8) == 8;
    close(map);
    close(all);
    return known ? flags >> 17 & 1 : -1;
}

static void fill(uint64_t seed) {
    for (int i = 0; i < PIECES; i++) stamp(pieces[i], PIECE, seed + i);
    for (int i = 0; i < SMALL; i++) stamp(small[i], 100 + i % 400, seed + i);
}

static int filled(uint64_t seed) {
    for (int i = 0; i < PIECES; i++)
        if (!stamped(pieces[i], PIECE, seed + i)) return 0;
    for (int i = 0; i < SMALL; i++)
        if (!stamped(small[i], 100 + i % 400, seed + i)) return 0;
    return 1;
}

static void churn(void) {
    uint64_t random = 11;
    static void *kept[300];
    for (int i = 0; i < 30000; i++) {
        int at = next_random(&random) % 300;
        free(kept[at]);
        kept[at] = malloc(next_random(&random) % (i % 50 ? 2000 : 500000));
        CHECK(kept[at]);
        stamp(kept[at], 1, i);
    }
    for (int i = 0; i < 300; i++) free(kept[i]), kept[i] = NULL;
}

static void succeed(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (status) fprintf(stderr, "a child ended with status %x\n", status);
    CHECK(status == 0);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    long wanted = atol(arguments[1]);
    for (int i = 0; i < PIECES; i++) CHECK(pieces[i] = malloc(PIECE));
    for (int i = 0; i < SMALL; i++) CHECK(small[i] = malloc(100 + i % 400));
    fill(1);
    int on_huge = 0;
    for (int i = 0; i < PIECES; i++) {
        long size = page_size(pieces[i]);
        on_huge += size > 4;
        CHECK(!wanted || size == wanted);
        int frame = is_huge_frame(pieces[i]);
        CHECK(frame < 0 || frame == (size > 4));
    }
    if (!wanted) CHECK(on_huge > 0 && on_huge < PIECES);
    for (int round = 1; round < 4; round++) {
        CHECK(filled(round));
        pid_t child = fork();
        if (!child) {
            alarm(60);
            CHECK(filled(round) && page_size(pieces[0]) == 4 && page_size(small[0]) == 4);
            churn();
            fill(100);
            pid_t grandchild = fork();
            if (!grandchild) {
                CHECK(filled(100));
                fill(200);
                churn();
                _exit(filled(200) ? 0 : 1);
            }
            churn();
            CHECK(filled(100));
            succeed(grandchild);
            _exit(filled(100) ? 0 : 1);
        }
        /* The parent writes at once: whatever was shared would now be copied. */
        fill(round + 1);
        churn();
        succeed(child);
        CHECK(filled(round + 1) && (!wanted || page_size(pieces[0]) == wanted));
    }
    /* Other programs would ask for pages of their own. */
    unsetenv("CONTIGUA_MALLOC_PRIMARY");
    pid_t spawned;
    char *command[] = {"true", NULL};
    extern char **environ;
    CHECK(!posix_spawnp(&spawned, "true", NULL, NULL, command, environ));
    succeed(spawned);
    CHECK(!system("true"));
    for (int i = 0; i < PIECES; i++) free(pieces[i]);
    for (int i = 0; i < SMALL; i++) free(small[i]);
    churn();
    return 0;
}
