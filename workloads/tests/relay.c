// 4,200 threads, of which at most three exist at a time: each starts the next and ends.
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

enum { THREADS = 4200 };

static sem_t done;
static pthread_attr_t detached;

static void *relay(void *number)
{
    intptr_t next = (intptr_t)number + 1;
    pthread_t thread;
    if (next > THREADS) {
        sem_post(&done);
    } else if (pthread_create(&thread, &detached, relay, (void *)next)) {
        perror("pthread_create");
        sem_post(&done);
    } else {
        // It exists before this one ends, so that QEMU gives it another number.
        usleep(100);
    }
    return 0;
}

int main(void)
{
    sem_init(&done, 0, 0);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, 64 << 10);
    relay(0);
    sem_wait(&done);
    printf("%d threads\n", THREADS);
    return 0;
}
