/*
 * execs: one process that replaces its program several times. Shows execve
 * (of itself, counting down, so that the address space is renewed while the
 * process stays), posix_spawn (vfork and exec in libc), fork and exec of the
 * shell, arguments and environment that survive, and exit statuses that come
 * back.
 */
#include "../common.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK "EXECS_MARK"

extern char **environ;

static char self[4096]; /* path of this program */

static void print_now(const char *format, uint64_t number)
{
    printf(format, number);
    fflush(stdout); /* exec would discard what is still buffered */
}

static void become(uint64_t countdown, uint64_t process)
{
    char count_text[24], process_text[24];
    snprintf(count_text, sizeof count_text, "%" PRIu64, countdown);
    snprintf(process_text, sizeof process_text, "%" PRIu64, process);
    char *arguments[] = {self, "--countdown", count_text, "--process", process_text, NULL};
    execve(self, arguments, environ);
    fail("cannot execute %s: %s", self, strerror(errno));
}

static int exit_status_of(pid_t pid)
{
    int status = 0;
    require(waitpid(pid, &status, 0) == pid);
    require(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int spawn_self(char *status_text)
{
    char *arguments[] = {self, "--status", status_text, NULL};
    pid_t pid;
    if ((errno = posix_spawn(&pid, self, NULL, NULL, arguments, environ)) != 0)
        fail("cannot spawn %s: %s", self, strerror(errno));
    return exit_status_of(pid);
}

/* A shell that runs this program as its child and adds one to its status. */
static int run_shell(void)
{
    pid_t pid = fork();
    require(pid >= 0);
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", "\"$1\" --status 8; exit $(($? + 1))", "sh", self,
              (char *)NULL);
        fail("cannot execute /bin/sh: %s", strerror(errno));
    }
    return exit_status_of(pid);
}

int main(int argc, char **argv)
{
    uint64_t countdown = 3, process = 0, status = 0;
    const struct option_spec options[] = {
        {"countdown", OPTION_COUNT, &countdown, 0, 1000, "times to execute itself"},
        {"process", OPTION_COUNT, &process, 0, UINT64_MAX, "internal: the process id to have"},
        {"status", OPTION_COUNT, &status, 0, 255, "internal: just print and exit like this"},
    };
    PARSE_OPTIONS(argc, argv, "A process that executes programs.", options);

    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    require(length > 0);
    if (status != 0) {
        require(getenv(MARK) != NULL);
        printf("execs: child exits with %" PRIu64 "\n", status);
        finish();
        return (int)status;
    }
    if (process == 0) {
        process = (uint64_t)getpid();
        require(setenv(MARK, "kept", 1) == 0);
    } else {
        require((uint64_t)getpid() == process);
        require(strcmp(getenv(MARK), "kept") == 0);
    }
    print_now("execs: countdown %" PRIu64 "\n", countdown);
    if (countdown > 0)
        become(countdown - 1, process);

    int spawned = spawn_self("7");
    require(spawned == 7);
    int shell = run_shell();
    require(shell == 9);
    printf("execs: spawned child exited with %d, shell with %d\n", spawned, shell);
    return finish();
}
