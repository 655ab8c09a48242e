/* "idle": does a process that frees all its memory at once, and then does nothing, give it back, when a thread is to begin
 * with the first idle memory? "hits": does one that then finds all it needs in its cache, without any thread? */
#include "common.h"
#include <fcntl.h>

/* Without the C library's files, which allocate. */
static long resident_kb(void) {
    char text[128] = {0};
    int file = open("/proc/self/statm", O_RDONLY);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0);
    close(file);
    return strtol(strchr(text, ' '), NULL, 10) * (sysconf(_SC_PAGESIZE) / 1024);
}

enum { COUNT = 120 * 1024, SIZE = 512, MOST_KB = 12000 };

int main(int count, char **arguments) {
    CHECK(count == 2);
    int hits = !strcmp(arguments[1], "hits");
    static char *all[COUNT];
    for (int i = 0; i < COUNT; i++) CHECK(all[i] = memset(malloc(SIZE), 1, SIZE));
    CHECK(resident_kb() > 60000);
    for (int i = 0; i < COUNT; i++) free(all[i]);
    for (int i = 0; i < 2000 && resident_kb() > MOST_KB; i++) {
        for (int j = 0; hits && j < 500; j++) free(opaque(malloc(SIZE)));
        usleep(10000);
    }
    if (resident_kb() > MOST_KB) fprintf(stderr, "%ld KB are resident\n", resident_kb());
    return resident_kb() > MOST_KB;
}
