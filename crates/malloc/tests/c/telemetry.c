/* Does a process that lives for a while show its figures in a page that others can find? */
#include "common.h"
#include <time.h>

int main(void) {
    uintptr_t begin = 0;
    for (int i = 0; i < 200 && !begin; i++) {
        struct timespec pause = {0, 50000000};
        nanosleep(&pause, NULL);
        for (int j = 0; j < 20; j++) free(opaque(malloc(500000)));
        begin = figures_page();
        if (begin && !*(volatile uint64_t *)begin) begin = 0;
    }
    CHECK(begin);
    uint64_t words[6];
    FILE *memory = fopen("/proc/self/mem", "r");
    CHECK(memory && !fseek(memory, (long)begin, SEEK_SET));
    CHECK(fread(words, sizeof words, 1, memory) == 1);
    fclose(memory);
    CHECK(!memcmp(words, "CONTIGUA", 8) && (uint32_t)words[1] == 1 && words[2] % 2 == 0);
    /* A child has a page by the same name, without its parent's figures. */
    if (!fork()) {
        volatile uint64_t *page = (uint64_t *)figures_page();
        if (!page || page[0]) _exit(1);
        for (int i = 0; i < 200 && !page[0]; i++) {
            struct timespec pause = {0, 50000000};
            nanosleep(&pause, NULL);
            for (int j = 0; j < 20; j++) free(opaque(malloc(500000)));
        }
        _exit(page[0] ? 0 : 1);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    return 0;
}
