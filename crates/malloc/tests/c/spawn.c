/* May programs be started in all the ways there are while threads allocate: vfork, posix_spawn, system,
 * popen, fork and exec? */
#include "common.h"
#include <spawn.h>

extern char **environ;
static volatile int stop;

static void *work(void *argument) {
    uint64_t random = 17 + (uintptr_t)argument;
    void *kept[64] = {0};
    while (!stop) {
        int at = next_random(&random) % 64;
        free(kept[at]);
        kept[at] = malloc(next_random(&random) % (at ? 2000 : 500000));
    }
    for (int i = 0; i < 64; i++) free(kept[i]);
    return NULL;
}

static void succeed(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], NULL, work, (void *)i));
    char *command[] = {"true", NULL};
    for (int round = 0; round < 20; round++) {
        char *kept = malloc(5000);
        stamp(kept, 5000, round);
        pid_t child = vfork();
        if (!child) {
            execvp("true", command);
            _exit(1);
        }
        succeed(child);
        /* The child shares the memory, and execvp may allocate in it. */
        CHECK(stamped(kept, 5000, round));
        CHECK(!posix_spawnp(&child, "true", NULL, NULL, command, environ));
        succeed(child);
        CHECK(posix_spawnp(&child, "no such program", NULL, NULL, command, environ) == ENOENT);
        child = fork();
        if (!child) {
            char **words = malloc(2 * sizeof *words);
            words[0] = strdup("true"), words[1] = NULL;
            execvp(words[0], words);
            _exit(1);
        }
        succeed(child);
        CHECK(!system("true"));
        FILE *pipe = popen("echo word", "r");
        char line[20];
        CHECK(pipe && fgets(line, sizeof line, pipe) && !strcmp(line, "word\n") && !pclose(pipe));
        CHECK(stamped(kept, 5000, round));
        free(kept);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return 0;
}
