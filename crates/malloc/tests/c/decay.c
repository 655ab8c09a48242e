/* "default": does memory that nobody needs any more go back within seconds, while the program does little,
 * and no more of it at once than a slow path may take? "parts": also where a little of each huge page stays in
 * use? "misses": does each miss of a cache do its part then? "idle": does most of it go at once, before the
 * program goes idle? "fixed": does it stay if it is to? */
#include "common.h"
#include "contigua_malloc.h"
#include <sys/mman.h>
#include <sys/syscall.h>

enum {
    COUNT = 512,
    BYTES = 1 << 20,
    LARGE = 300 << 10,
    STEP = 64 << 20,
    SMALL = 8 << 10,
    KEPT = 200 << 20
};
static size_t released;

/* The library's calls come here, too. */
int madvise(void *address, size_t bytes, int advice) {
    if (advice == MADV_DONTNEED) released += bytes;
    return (int)syscall(SYS_madvise, address, bytes, advice);
}

static long mapped(void) { return (long)contigua_malloc_figure("heap_mapped"); }

/* Little is done until less than 64 MB are mapped; or no more than 20 seconds, of Δ's 60. */
static int parts(void) {
    enum { OBJECTS = COUNT * (BYTES / SMALL) };
    static void *all[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) CHECK(all[i] = memset(malloc(SMALL), 1, SMALL));
    for (int i = 0; i < OBJECTS; i++)
        if (i % 128) free(all[i]);
    CHECK(mapped() > 200 << 20);
    for (int i = 0; i < 2000; i++) {
        free(opaque(malloc(LARGE)));
        if (mapped() < 64 << 20) return 0;
        usleep(10000);
    }
    fprintf(stderr, "%ld bytes are still mapped\n", mapped());
    return 1;
}

static long misses(void) { return (long)contigua_malloc_figure("misses"); }

/* Every 64th miss looks at the time anyway; those between must suffice. Their objects come from spans that are
 * half in use, so that the page heap is not asked. */
static int by_misses(void) {
    enum { OBJECT = 512, IN_SPAN = 16, OBJECTS = (128 << 20) / OBJECT };
    static void *all[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) CHECK(all[i] = memset(malloc(OBJECT), 1, OBJECT));
    for (int i = 0; i < OBJECTS; i++)
        if (i / IN_SPAN % 4 || i % 2) free(all[i]);
    while (misses() % 64 != 1) CHECK(malloc(OBJECT));
    long before = mapped();
    usleep(2500000);
    while (misses() % 64 && mapped() > before - (64 << 20)) CHECK(malloc(OBJECT));
    if (mapped() <= before - (64 << 20)) return 0;
    fprintf(stderr, "%ld bytes of %ld are still mapped\n", mapped(), before);
    return 1;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    if (!strcmp(arguments[1], "misses")) return by_misses();
    if (!strcmp(arguments[1], "parts")) return parts();
    static void *all[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK(all[i] = malloc(BYTES));
        memset(all[i], 1, BYTES);
    }
    for (int i = 0; i < COUNT; i++) free(all[i]);
    long before = mapped();
    if (!strcmp(arguments[1], "fixed")) {
        CHECK(before >= (long)COUNT * BYTES / 2);
        for (int periods = 0; periods < 4; usleep(10000)) periods += contigua_malloc_periodic();
        CHECK(mapped() == before && released == 0);
        return 0;
    }
    if (!strcmp(arguments[1], "idle")) {
        CHECK(before <= KEPT);
        return 0;
    }
    /* At a fixed rate of 1 MiB/s that would take seven minutes. */
    for (int i = 0; i < 9000; i++) {
        size_t earlier = released;
        void *little = opaque(malloc(LARGE));
        CHECK(little && released - earlier <= STEP);
        earlier = released;
        free(little);
        CHECK(released - earlier <= STEP);
        if (mapped() < 64 << 20) return 0;
        usleep(10000);
    }
    fprintf(stderr, "%ld bytes of %ld are still mapped\n", mapped(), before);
    return 1;
}
