/* The first process of a virtual machine in which the tests run on a real kernel: each line of
 * /tests is a program with its arguments, after variables of its environment. Says for each whether
 * it succeeded, and at the end how many did not. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int run(char *line) {
    char *words[32];
    int count = 0, first = 0;
    for (char *word = strtok(line, " \n"); word && count < 31; word = strtok(NULL, " \n"))
        words[count++] = word;
    words[count] = NULL;
    pid_t child = fork();
    if (!child) {
        for (; words[first] && strchr(words[first], '='); first++) putenv(words[first]);
        putenv("LD_PRELOAD=/lib/libcontigua_malloc.so");
        execv(words[first], words + first);
        _exit(127);
    }
    int status = -1;
    while (wait(&status) != child) {
    }
    return status;
}

int main(void) {
    mkdir("/proc", 0755), mkdir("/sys", 0755), mkdir("/dev", 0755), mkdir("/tmp", 0777);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("sysfs", "/sys", "sysfs", 0, NULL);
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    mount("tmpfs", "/tmp", "tmpfs", 0, NULL);
    mkdir("/dev/shm", 0777);
    int console = open("/dev/console", O_RDWR);
    for (int i = 0; i < 3; i++) dup2(console, i);
    char line[1024], shown[1024];
    int failed = 0, all = 0;
    FILE *tests = fopen("/tests", "re");
    while (tests && fgets(line, sizeof line, tests)) {
        strcpy(shown, line);
        shown[strcspn(shown, "\n")] = 0;
        int status = run(line);
        printf("%s: %s (status %#x)\n", status ? "FAILED" : "ok", shown, (unsigned)status);
        fflush(stdout);
        failed += status != 0;
        all++;
    }
    printf("tests: %d of %d failed\n", failed, all);
    fflush(stdout);
    sync();
    reboot(RB_POWER_OFF);
    return 0;
}
