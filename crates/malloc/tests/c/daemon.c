/* May a daemon close all files, whoever opened them, and does the allocator keep none open? */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <time.h>

static int open_files(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory);
    while (readdir(directory)) count++;
    closedir(directory);
    return count - 3; /* ".", ".." and the directory itself. */
}

static void busy(int tenths) {
    static void *kept[500];
    uint64_t random = 7;
    for (int round = 0; round < tenths; round++) {
        struct timespec pause = {0, 100000000};
        nanosleep(&pause, NULL);
        for (int i = 0; i < 2000; i++) {
            int at = next_random(&random) % 500;
            free(kept[at]);
            kept[at] = malloc(1 + next_random(&random) % (i % 50 ? 3000 : 700000));
            memset(kept[at], 1, 1);
        }
    }
}

int main(void) {
    int before = open_files();
    pid_t child = fork();
    if (!child) {
        setsid();
        CHECK(!close_range(0, ~0U, 0));
        pid_t grandchild = fork();
        if (grandchild) {
            int status;
            CHECK(waitpid(grandchild, &status, 0) == grandchild);
            _exit(status ? 1 : 0);
        }
        /* The standard files are now files of the daemon's. */
        int own = open("/dev/null", O_RDWR);
        CHECK(own == 0 && dup(0) == 1 && dup(0) == 2);
        busy(14);
        CHECK(open_files() == 3);
        CHECK(fcntl(own, F_GETFD) == 0 && write(own, "x", 1) == 1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    busy(8);
    CHECK(open_files() == before);
    return 0;
}
