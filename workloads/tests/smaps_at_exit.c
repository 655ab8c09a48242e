// Runs a program natively, its addresses not randomized, and writes /proc/PID/smaps of each of its
// processes at their end: what `contigua run --smaps` writes of a simulated one.
// As under QEMU 7.2, programs are not told of a vDSO, for which their loader would allocate memory.
//   smaps_at_exit FILE PROGRAM [ARGUMENT]...
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <elf.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 1 << 16 };

// Processes in the order in which they were made, as the simulator counts them.
static pid_t processes[MOST];
static int count;

static int number_of(pid_t id)
{
    for (int i = 0; i < count; i++)
        if (processes[i] == id)
            return i;
    return -1;
}

static void made(pid_t id)
{
    if (number_of(id) < 0 && count < MOST)
        processes[count++] = id;
}

static int is_process(pid_t id)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", id);
    FILE *status = fopen(path, "r");
    char line[256];
    int group = -1;
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "Tgid: %d", &group) == 1)
            break;
    if (status)
        fclose(status);
    return group == id;
}

static void copy_mappings(pid_t id, FILE *to)
{
    char path[64], block[1 << 16];
    snprintf(path, sizeof path, "/proc/%d/smaps", id);
    FILE *from = fopen(path, "r");
    if (!from) {
        perror(path);
        return;
    }
    fprintf(to, "process %d\n", number_of(id));
    for (size_t bytes; (bytes = fread(block, 1, sizeof block, from)) > 0;)
        fwrite(block, 1, bytes, to);
    fclose(from);
}

// Hides the vDSO of a program that begins: its stack has the number of arguments, these, the
// environment, and the auxiliary vector, with zeros in between.
static void hide_vdso(pid_t id)
{
#ifdef __x86_64__
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, id, NULL, &registers) != 0)
        return;
    unsigned long at = registers.rsp + sizeof at;
    for (int zeros = 0; zeros < 2; at += sizeof at)
        zeros += ptrace(PTRACE_PEEKDATA, id, at, NULL) == 0;
    for (long type; (type = ptrace(PTRACE_PEEKDATA, id, at, NULL)) != AT_NULL; at += 2 * sizeof at)
        if (type == AT_SYSINFO_EHDR)
            ptrace(PTRACE_POKEDATA, id, at, AT_IGNORE);
#else
    (void)id;
#endif
}

static void run(char **command, int ready)
{
    char byte;
    while (read(ready, &byte, 1) < 0 && errno == EINTR)
        ;
    close(ready);
    personality(ADDR_NO_RANDOMIZE);
    execvp(command[0], command);
    perror(command[0]);
    _exit(127);
}

int main(int argc, char **argv)
{
    int pipes[2];
    if (argc < 3 || pipe(pipes) != 0)
        return 2;
    FILE *to = fopen(argv[1], "we");
    if (!to) {
        perror(argv[1]);
        return 2;
    }
    pid_t first = fork();
    if (first == 0) {
        close(pipes[1]);
        run(argv + 2, pipes[0]);
    }
    close(pipes[0]);
    made(first);
    long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
                   PTRACE_O_TRACEEXEC | PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SEIZE, first, NULL, options) != 0) {
        perror("ptrace");
        return 2;
    }
    close(pipes[1]);
    int status, result = 1;
    for (pid_t id; (id = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) {
            if (id == first)
                result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        unsigned long made_now = 0;
        int event = status >> 16, signal = WSTOPSIG(status);
        switch (event) {
        case PTRACE_EVENT_FORK:
        case PTRACE_EVENT_VFORK:
        case PTRACE_EVENT_CLONE:
            ptrace(PTRACE_GETEVENTMSG, id, NULL, &made_now);
            if (is_process(made_now))
                made(made_now);
            break;
        case PTRACE_EVENT_EXEC:
            hide_vdso(id);
            break;
        case PTRACE_EVENT_EXIT:
            // The first thread holds the memory until it goes on.
            if (is_process(id))
                copy_mappings(id, to);
            break;
        case PTRACE_EVENT_STOP:
            if (signal != SIGTRAP) {
                ptrace(PTRACE_LISTEN, id, NULL, NULL);
                continue;
            }
            break;
        default:
            break;
        }
        ptrace(PTRACE_CONT, id, NULL, event ? 0 : signal);
    }
    return fclose(to) == 0 ? result : 2;
}
