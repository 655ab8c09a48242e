/* "default": does memory that nobody needs any more go back within seconds, while the program does little,
 * and no more of it at once than a slow path may take? "fixed": does it stay if it is to? */
#include "common.h"
#include "contigua_malloc.h"
#include <sys/mman.h>
#include <sys/syscall.h>

enum { COUNT = 512, BYTES = 1 << 20, LARGE = 300 << 10, STEP = 64 << 20 };
static size_t released;

/* The library's calls come here, too. */
int madvise(void *address, size_t bytes, int advice) {
    if (advice == MADV_DONTNEED) released += bytes;
    return (int)syscall(SYS_madvise, address, bytes, advice);
}

static long mapped(void) { return (long)contigua_malloc_figure("heap_mapped"); }

int main(int count, char **arguments) {
    CHECK(count == 2);
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
