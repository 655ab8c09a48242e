/* What does each hardening level do? */
#include "common.h"
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { BYTES = 100, LARGE = 300000, PAGE = 8192 };

int main(int count, char **arguments) {
    CHECK(count == 2);
    const char *what = arguments[1];
    struct rlimit none = {0, 0};
    CHECK(!setrlimit(RLIMIT_CORE, &none));
    if (!strcmp(what, "kernel")) {
        void *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(page != MAP_FAILED && !madvise(page, PAGE, 102));
    }
    if (!strcmp(what, "write-after-free")) {
        char *volatile object = malloc(BYTES);
        free(object);
        memset(object, 1, BYTES);
        char *again[300];
        for (int i = 0; i < 300; i++) {
            CHECK(again[i] = calloc(1, BYTES));
            for (int byte = 0; byte < BYTES; byte++) CHECK(!again[i][byte]);
        }
    }
    if (!strcmp(what, "reused-late")) {
        /* The chance that one of these comes back at once is one in 64. */
        int again = 0;
        for (int i = 0; i < 1000; i++) {
            char *volatile object = malloc(BYTES);
            uintptr_t before = (uintptr_t)object;
            free(object);
            object = malloc(BYTES);
            again += (uintptr_t)object == before;
            free(object);
        }
        CHECK(again < 100);
    }
    if (!strcmp(what, "behind-large")) {
        char *volatile object = malloc(LARGE);
        CHECK(object);
        object[(LARGE + 8 + PAGE - 1) / PAGE * PAGE] = 1;
    }
    if (!strcmp(what, "behind-span")) {
        /* No span of this size has 32 pages. */
        char *volatile object = malloc(BYTES);
        for (size_t i = 0; i < 32 * PAGE; i += PAGE / 2) (void)((volatile char *)object)[i];
    }
    if (!strcmp(what, "reused-guards")) {
        /* What was a guard page is part of an object later. */
        for (int round = 0; round < 50; round++) {
            char *objects[40];
            for (int i = 0; i < 40; i++) {
                size_t bytes = LARGE + (size_t)(round * 40 + i) * 977 % 100 * PAGE;
                CHECK(objects[i] = malloc(bytes));
                memset(objects[i], i, bytes);
            }
            for (int i = 0; i < 40; i++) free(objects[i]);
            if (round % 10 == 0) malloc_trim(0);
        }
    }
    return 0;
}
