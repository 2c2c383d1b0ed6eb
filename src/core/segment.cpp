#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <system_error>

namespace corral {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

constexpr int required_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Descriptor {
    int fd;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
    int release() {
        int f = fd;
        fd = -1;
        return f;
    }
};

}  // namespace

std::unique_ptr<Segment> Segment::create(const char* label, size_t bytes) {
    Descriptor d{memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    if (d.fd < 0) fail("memfd_create");
    // The permission bits of the inode govern who may reopen it through /proc.
    if (fchmod(d.fd, 0600) != 0) fail("fchmod of a shared segment");
    if (ftruncate(d.fd, static_cast<off_t>(bytes)) != 0) fail("ftruncate of a shared segment");
    if (fcntl(d.fd, F_ADD_SEALS, required_seals) != 0) fail("sealing a shared segment");
    return std::unique_ptr<Segment>(new Segment(d.release(), true));
}

std::unique_ptr<Segment> Segment::open(pid_t pid, int fd, const char* label, size_t bytes, uint64_t inode,
                                       bool writable) {
    std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
    char target[64] = {};
    ssize_t n = readlink(path.c_str(), target, sizeof target - 1);
    if (n < 0) fail("opening " + path);
    std::string expected = std::string("/memfd:") + label + " (deleted)";
    if (expected != target) throw std::runtime_error(path + " is not a segment of corral: " + target);
    Descriptor d{::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC)};
    if (d.fd < 0) fail("opening " + path);
    struct stat st;
    if (fstat(d.fd, &st) != 0) fail("fstat of " + path);
    if (st.st_uid != geteuid()) throw std::runtime_error(path + " belongs to another user");
    if ((fcntl(d.fd, F_GET_SEALS) & required_seals) != required_seals)
        throw std::runtime_error(path + " is not sealed against shrinking");
    if (inode != 0 && st.st_ino != inode) throw std::runtime_error(path + " is another segment by now");
    if (static_cast<size_t>(st.st_size) < bytes) throw std::runtime_error(path + " is too small");
    return std::unique_ptr<Segment>(new Segment(d.release(), writable));
}

Segment::Segment(int fd, bool writable) : fd_(fd) {
    struct stat st;
    if (fstat(fd_, &st) != 0) {
        int saved = errno;
        ::close(fd_);
        errno = saved;
        fail("fstat of a shared segment");
    }
    size_ = static_cast<size_t>(st.st_size);
    inode_ = st.st_ino;
    void* p = mmap(nullptr, size_ == 0 ? 1 : size_, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd_, 0);
    if (p == MAP_FAILED) {
        int saved = errno;
        ::close(fd_);
        errno = saved;
        fail("mapping a shared segment");
    }
    data_ = static_cast<std::byte*>(p);
}

Segment::~Segment() {
    munmap(data_, size_ == 0 ? 1 : size_);
    ::close(fd_);
}

size_t Segment::resident() const {
    struct stat st;
    return fstat(fd_, &st) == 0 ? static_cast<size_t>(st.st_blocks) * 512 : 0;
}

}  // namespace corral
