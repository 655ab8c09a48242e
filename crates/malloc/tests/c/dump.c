/* Signals that ask for figures, while threads allocate: does anybody hang, and does the program's
 * own handling survive? The environment names SIGUSR2. */
#include "common.h"
#include <signal.h>
#include <time.h>

static volatile int stop;

static void *busy(void *seed) {
    uint64_t random = (uint64_t)(uintptr_t)seed * 77 + 1;
    void *kept[64] = {0};
    /* A small stack for handlers: dumping must fit there. */
    stack_t stack = {.ss_sp = malloc(SIGSTKSZ), .ss_size = SIGSTKSZ};
    CHECK(!sigaltstack(&stack, NULL));
    while (!stop) {
        uint64_t number = next_random(&random);
        size_t slot = number % 64, size = number >> 8 & (number & 64 ? 0xff : 0xfffff);
        free(kept[slot]);
        kept[slot] = opaque(malloc(size));
        CHECK(kept[slot]);
    }
    for (int i = 0; i < 64; i++) free(kept[i]);
    stack.ss_flags = SS_DISABLE;
    CHECK(!sigaltstack(&stack, NULL));
    return NULL;
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "idle")) { /* asked once, from outside of malloc */
        void *memory = opaque(malloc(5 << 20));
        errno = 4711;
        raise(SIGUSR2);
        CHECK(errno == 4711);
        for (int i = 0; i < 20; i++) free(opaque(malloc(1 << 20))); /* slow paths */
        free(memory);
        return 0;
    }
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], NULL, busy, (void *)i));
    for (int i = 0; i < 600; i++) {
        struct timespec pause = {0, 500000};
        nanosleep(&pause, NULL);
        CHECK(!pthread_kill(threads[i % 3], SIGUSR2));
        if (i % 100 == 0) {
            pid_t child = fork();
            if (!child) {
                raise(SIGUSR2);
                free(opaque(malloc(1 << 20)));
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
    }
    stop = 1;
    for (int i = 0; i < 3; i++) CHECK(!pthread_join(threads[i], NULL));
    return 0;
}
