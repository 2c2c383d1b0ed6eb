#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace corral {
namespace {

// struct pidfd_info of Linux 6.15, which the headers of older systems lack.
struct PidfdInfo {
    uint64_t mask;
    uint64_t cgroupid;
    uint32_t pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
    int32_t exit_code;
};
constexpr uint64_t pidfd_info_exit = 1u << 3;
constexpr unsigned long pidfd_get_info = _IOWR(0xFF, 11, PidfdInfo);

// Field `number` (counted from 1, as in proc(5)) of /proc/<pid>/stat, or nothing.
std::optional<uint64_t> stat_field(pid_t pid, int number) {
    std::string path = "/proc/" + std::to_string(pid) + "/stat";
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return std::nullopt;
    char text[2048];
    ssize_t n = ::read(fd, text, sizeof text - 1);
    ::close(fd);
    if (n <= 0) return std::nullopt;
    text[n] = 0;
    // The second field is the command's name in parentheses and may itself hold spaces and parentheses.
    char* at = std::strrchr(text, ')');
    for (int field = 2; at && field < number; ++field) at = std::strchr(at + 1, ' ');
    if (!at) return std::nullopt;
    return std::strtoull(at + 1, nullptr, 10);
}

}  // namespace

uint64_t start_time(pid_t pid) { return stat_field(pid, 22).value_or(0); }

Process::Process(pid_t pid, uint64_t started) : pid_(pid) {
    fd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (fd_ < 0 && errno != ESRCH) throw std::system_error(errno, std::generic_category(), "pidfd_open");
    // Compared after opening: from here on the descriptor names one process, and it must be the one meant.
    if (fd_ >= 0 && start_time(pid) != started) {
        ::close(fd_);
        fd_ = -1;
    }
}

Process::Process(Process&& o) noexcept : pid_(o.pid_), fd_(std::exchange(o.fd_, -1)) {}

Process& Process::operator=(Process&& o) noexcept {
    std::swap(pid_, o.pid_);
    std::swap(fd_, o.fd_);
    return *this;
}

Process::~Process() {
    if (fd_ >= 0) ::close(fd_);
}

bool Process::alive() const { return !ends_within(0); }

bool Process::ends_within(int milliseconds) const {
    if (fd_ < 0) return true;
    pollfd p{fd_, POLLIN, 0};
    return poll(&p, 1, milliseconds) > 0;
}

std::optional<int> Process::exit_status() const {
    if (fd_ < 0) return std::nullopt;
    PidfdInfo info{};
    info.mask = pidfd_info_exit;
    if (ioctl(fd_, pidfd_get_info, &info) == 0 && (info.mask & pidfd_info_exit)) return info.exit_code;
    // A process that its parent has not waited for yet still has an entry in /proc.
    if (auto code = stat_field(pid_, 52); code && !alive()) return static_cast<int>(*code);
    return std::nullopt;
}

}  // namespace corral
