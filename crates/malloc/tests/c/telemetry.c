/* Does a process that lives for a while show its figures in a page that others can find? */
#include "common.h"
#include <time.h>

static unsigned long find(void) {
    char line[512];
    unsigned long begin = 0, address;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:contigua-malloc") && sscanf(line, "%lx-", &address) == 1)
            begin = address;
    fclose(maps);
    return begin;
}

int main(void) {
    unsigned long begin = 0;
    for (int i = 0; i < 200 && !begin; i++) {
        struct timespec pause = {0, 50000000};
        nanosleep(&pause, NULL);
        for (int j = 0; j < 20; j++) free(opaque(malloc(500000)));
        begin = find();
    }
    CHECK(begin);
    uint64_t words[6];
    FILE *memory = fopen("/proc/self/mem", "r");
    CHECK(memory && !fseek(memory, (long)begin, SEEK_SET));
    CHECK(fread(words, sizeof words, 1, memory) == 1);
    fclose(memory);
    CHECK(!memcmp(words, "CONTIGUA", 8) && (uint32_t)words[1] == 1 && words[2] % 2 == 0);
    if (!fork()) _exit(find() == 0 ? 0 : 1);
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    return 0;
}
