/* A process with known figures, for a reader in another process. It says "ready" once its page is
 * there, and then writes over words of the page as it is told: "INDEX VALUE". */
#include "common.h"
#include <time.h>

int main(void) {
    static void *small[2000], *large[10];
    for (int i = 0; i < 2000; i++) CHECK(small[i] = opaque(malloc(1000)));
    for (int i = 0; i < 10; i++) CHECK(large[i] = opaque(malloc(1 << 20)));
    volatile uint64_t *page = NULL;
    for (int i = 0; i < 400 && !(page && *page); i++) {
        struct timespec pause = {0, 25000000};
        nanosleep(&pause, NULL);
        for (int j = 0; j < 20; j++) free(opaque(malloc(500000)));
        page = (volatile uint64_t *)figures_page();
    }
    CHECK(page && *page);
    puts("ready");
    fflush(stdout);
    unsigned index;
    unsigned long value;
    while (scanf("%u %lu", &index, &value) == 2) {
        page[index] = value;
        puts("done");
        fflush(stdout);
    }
    return 0;
}
