/* Does a process that frees its memory and then does nothing give it back, when a thread is to begin
 * with the first idle memory? And so does a child of it. */
#include "common.h"
#include <dirent.h>
#include <time.h>

static long resident_kb(void) {
    long total, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &total, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static int threads(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/task");
    CHECK(directory);
    while (readdir(directory)) count++;
    closedir(directory);
    return count - 2;
}

static void rest(int milliseconds) {
    struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

static void use_and_rest(void) {
    enum { COUNT = 1500, SIZE = 100000 };
    static char *kept[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK(kept[i] = malloc(SIZE));
        memset(kept[i], 1, SIZE);
    }
    CHECK(resident_kb() > 120000);
    for (int i = 0; i < COUNT; i++) free(kept[i]);
    /* Work is looked for about once a second, by whoever allocates. */
    rest(1200);
    for (int i = 0; i < 200; i++) free(opaque(malloc(300000)));
    for (int i = 0; i < 200 && resident_kb() > 40000; i++) rest(100);
    if (resident_kb() > 40000) fprintf(stderr, "%ld KB are resident\n", resident_kb());
    CHECK(resident_kb() <= 40000 && threads() == 2);
}

int main(void) {
    free(opaque(malloc(1000)));
    CHECK(threads() == 1);
    use_and_rest();
    pid_t child = fork();
    if (!child) {
        CHECK(threads() == 1);
        use_and_rest();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    use_and_rest();
    return 0;
}
