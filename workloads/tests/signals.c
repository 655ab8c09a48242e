/*
 * signals: control flow that the program's own code does not show. A timer
 * interrupts a busy loop wherever it is (SIGALRM); accesses that fault are
 * left by siglongjmp out of the SIGSEGV handler, without a return from it;
 * handlers run on an alternate stack when asked to.
 */
#include "../common.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define ALARMS 5
#define FAULTS 100
#define ALTERNATE_STACK_SIZE (64 * KIB)

static volatile sig_atomic_t alarms;
static void *volatile fault_address;
static volatile uintptr_t handler_frame; /* some address on the handler's stack */
static sigjmp_buf after_fault;

static void install(int signal, int flags, void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    sigemptyset(&action.sa_mask);
    require(sigaction(signal, &action, NULL) == 0);
}

static void on_alarm(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    alarms++;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    fault_address = info->si_addr;
    siglongjmp(after_fault, 1);
}

static void on_user_signal(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    handler_frame = (uintptr_t)__builtin_frame_address(0);
}

static void count_alarms(void)
{
    install(SIGALRM, SA_RESTART, on_alarm);
    struct itimerval timer = {.it_interval = {.tv_usec = 2000}, .it_value = {.tv_usec = 2000}};
    require(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    volatile uint64_t turns = 0;
    while (alarms < ALARMS)
        turns++;
    struct itimerval stop = {.it_value = {.tv_usec = 0}};
    require(setitimer(ITIMER_REAL, &stop, NULL) == 0);
    printf("signals: a busy loop was interrupted %d times\n", ALARMS);
}

static void survive_faults(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *memory =
        mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED);
    require(mprotect(memory + page, page, PROT_READ) == 0);
    install(SIGSEGV, 0, on_fault);
    volatile int faults = 0;
    for (volatile int i = 0; i < FAULTS; i++) {
        volatile unsigned char *target = memory + page + i;
        if (sigsetjmp(after_fault, 1) == 0) {
            memory[i] = 1; /* legal */
            *target = 1;   /* a write to a read-only page */
            fail("a write to a read-only page went through");
        }
        require(fault_address == target);
        require(memory[i] == 1 && *target == 0);
        faults++;
    }
    signal(SIGSEGV, SIG_DFL);
    require(munmap(memory, 2 * page) == 0);
    printf("signals: %d faults left by siglongjmp\n", faults);
}

static bool handled_inside(const unsigned char *stack)
{
    handler_frame = 0;
    require(raise(SIGUSR1) == 0);
    require(handler_frame != 0);
    return handler_frame - (uintptr_t)stack < ALTERNATE_STACK_SIZE;
}

static void switch_stacks(void)
{
    unsigned char *memory = allocate(ALTERNATE_STACK_SIZE, 1);
    stack_t stack = {.ss_sp = memory, .ss_size = ALTERNATE_STACK_SIZE};
    require(sigaltstack(&stack, NULL) == 0);
    install(SIGUSR1, SA_ONSTACK, on_user_signal);
    require(handled_inside(memory));
    install(SIGUSR1, 0, on_user_signal);
    require(!handled_inside(memory));
    stack.ss_flags = SS_DISABLE;
    require(sigaltstack(&stack, NULL) == 0);
    free(memory);
    printf("signals: handlers ran on the alternate and on the normal stack\n");
}

int main(int argc, char **argv)
{
    parse_options(argc, argv, "Timer, fault and alternate-stack signal handling.", NULL, 0);
    count_alarms();
    survive_faults();
    switch_stacks();
    return finish();
}
