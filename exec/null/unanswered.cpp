// Real CUDA libraries may be there and would answer what is not answered here, with handles and addresses that are not
// theirs: a crash, or a silent wrong capture. So the tables by which loaded libraries call others (.got) are walked,
// and what leads to an unanswered function of a CUDA library is pointed at a few bytes of code that name it.
#include "exec/null/unanswered.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "exec/null/abi.h"
#include "exec/null/log.h"
#include "exec/null/record.h"

namespace foreshard::null {
namespace {

[[noreturn]] void refuse_call(const char* name) {
  const std::string place = python_place();
  refuse(std::string("unanswered call ") + name + (place.empty() ? "" : " at " + place) +
         ": the null GPU does not know it (exec/null/ is where it would be answered); do this part "
         "on the host (tensor.cpu()), or leave it out where the step's time does not hang on it");
}

// Libraries of CUDA by the start of what they export. CUDA's runtime and driver, NCCL, cuBLAS and
// cuDNN are answered here, function by function.
bool is_cuda_symbol(const char* name) {
  for (const char* start : {"cuda", "__cuda", "cublas", "cudnn", "nccl", "cusolver", "cusparse", "cufft", "curand",
           "nvrtc", "nvJitLink", "cuFile", "nvshmem"})
    if (std::strncmp(name, start, std::strlen(start)) == 0) return true;
  return false;
}

// Compile on the host, without a device; error texts.
bool may_stay(const char* name) {
  return std::strncmp(name, "nvrtc", 5) == 0 || std::strncmp(name, "nvJitLink", 9) == 0 ||
         std::strstr(name, "GetErrorString") != nullptr || std::strcmp(name, "cudnnGetProperty") == 0 ||
         std::strstr(name, "Version") != nullptr;
}

void* own_function(const char* name) {
  static void* const self = [] {
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(&refuse_call), &info) == 0) return static_cast<void*>(nullptr);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  void* const found = self == nullptr ? nullptr : dlsym(self, name);
  if (found == nullptr) return nullptr;
  // dlsym also looks into what this library needs.
  Dl_info own, of;
  const bool is_own = dladdr(reinterpret_cast<void*>(&refuse_call), &own) != 0 && dladdr(found, &of) != 0 &&
                      own.dli_fbase == of.dli_fbase;
  return is_own ? found : nullptr;
}

// What programs that look for CUDA's libraries themselves (cuDNN's frontend, ctypes) find in them.
// Both end in a jump: whom the loader takes for the caller decides where it looks.
[[gnu::optimize("O2")]] void* find_symbol(void* library, const char* name) {
  if (is_cuda_symbol(name)) {
    void* const own = own_function(name);
    if (own != nullptr) return own;
  }
  return dlsym(library, name);
}

// Stand-ins lie there for every CUDA; where one is needed, another one's are not there.
[[gnu::optimize("O2")]] void* open_library(const char* name, int flags) {
  const char* const version = name == nullptr ? nullptr : std::strstr(name, ".so.");
  const bool is_cuda = version != nullptr && std::strncmp(name, "libcudart", 9) == 0;
  if (is_cuda && !is_needed(name) && is_needed(name, static_cast<std::size_t>(version + 4 - name)))
    return dlopen("libcudart.so.of-another-cuda", flags);
  return dlopen(name, flags);
}

struct Tables {
  std::vector<ElfW(Xword)> needed;  // places in names
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * relocations[2] = {};
  std::size_t sizes[2] = {};
};

Tables tables_of(const dl_phdr_info& info) {
  Tables t;
  const auto at = [&](ElfW(Addr) value) {  // glibc has relocated these already
    return value < info.dlpi_addr ? value + info.dlpi_addr : value;
  };
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* d = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    for (; d->d_tag != DT_NULL; ++d) {
      if (d->d_tag == DT_NEEDED) t.needed.push_back(d->d_un.d_val);
      if (d->d_tag == DT_SYMTAB) t.symbols = reinterpret_cast<const ElfW(Sym)*>(at(d->d_un.d_ptr));
      if (d->d_tag == DT_STRTAB) t.names = reinterpret_cast<const char*>(at(d->d_un.d_ptr));
      if (d->d_tag == DT_JMPREL) t.relocations[0] = reinterpret_cast<const ElfW(Rela)*>(at(d->d_un.d_ptr));
      if (d->d_tag == DT_PLTRELSZ) t.sizes[0] = d->d_un.d_val / sizeof(ElfW(Rela));
      if (d->d_tag == DT_RELA) t.relocations[1] = reinterpret_cast<const ElfW(Rela)*>(at(d->d_un.d_ptr));
      if (d->d_tag == DT_RELASZ) t.sizes[1] = d->d_un.d_val / sizeof(ElfW(Rela));
    }
  }
  return t;
}

void point(void** slot, void* function) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  void* const begin = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(slot) / page * page);
  if (mprotect(begin, 2 * page, PROT_READ | PROT_WRITE) == 0) *slot = function;
}

// nullptr: what it is.
void* called_instead(const char* name) {
  if (std::strcmp(name, "dlsym") == 0) return reinterpret_cast<void*>(&find_symbol);
  if (std::strcmp(name, "dlopen") == 0) return reinterpret_cast<void*>(&open_library);
  if (!is_cuda_symbol(name) || may_stay(name) || own_function(name) != nullptr) return nullptr;
  return refusing_function(name);
}

int patch_library(dl_phdr_info* info, std::size_t, void*) {
  static std::set<ElfW(Addr)>* const seen = new std::set<ElfW(Addr)>;
  if (!seen->insert(info->dlpi_addr).second) return 0;
  // Only PyTorch's and other programs' own: CUDA's libraries call each other as they like.
  const std::string file = info->dlpi_name;
  for (const char* cuda : {"libcu", "libnv", "libnccl", "linux-vdso", "libforeshard-"})
    if (file.find(cuda) != std::string::npos) return 0;
  const Tables t = tables_of(*info);
  if (t.symbols == nullptr || t.names == nullptr) return 0;
  for (int table = 0; table < 2; ++table) {
    for (std::size_t i = 0; i < t.sizes[table]; ++i) {
      const ElfW(Rela)& r = t.relocations[table][i];
      const auto type = ELF64_R_TYPE(r.r_info);
#if defined(__x86_64__)
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
#else
      if (type != R_AARCH64_JUMP_SLOT && type != R_AARCH64_GLOB_DAT) continue;
#endif
      const ElfW(Sym)& symbol = t.symbols[ELF64_R_SYM(r.r_info)];
      if (symbol.st_shndx != SHN_UNDEF) continue;
      const char* const name = t.names + symbol.st_name;
      void* const other = called_instead(name);
      if (other != nullptr) point(reinterpret_cast<void**>(info->dlpi_addr + r.r_offset), other);
    }
  }
  return 0;
}

}

void* refusing_function(const char* name) {
#if defined(__x86_64__)
  static std::mutex mutex;
  static std::map<std::string, void*>* const made = new std::map<std::string, void*>;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = made->emplace(name, nullptr);
  if (!is_new) return at->second;
  // and rsp, -16; mov rdi, name; mov rax, refuse_call; call rax
  static unsigned char* next = nullptr;
  static std::size_t left = 0;
  constexpr std::size_t kSize = 32, kPages = std::size_t{1} << 16;
  if (left < kSize) {
    void* const pages = mmap(nullptr, kPages, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    next = static_cast<unsigned char*>(pages);
    left = kPages;
  }
  const char* const text = at->first.c_str();
  void (*const handler)(const char*) = &refuse_call;
  unsigned char code[kSize] = {0x48, 0x83, 0xe4, 0xf0, 0x48, 0xbf};
  std::memcpy(code + 6, &text, 8);
  code[14] = 0x48;
  code[15] = 0xb8;
  std::memcpy(code + 16, &handler, 8);
  code[24] = 0xff;
  code[25] = 0xd0;
  std::memcpy(next, code, kSize);
  at->second = next;
  next += kSize;
  left -= kSize;
  return at->second;
#else
  static_cast<void>(name);
  return nullptr;
#endif
}

void patch_unanswered() {
  static std::mutex mutex;
  static unsigned long long loaded = 0;
  const std::lock_guard lock(mutex);
  unsigned long long now = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        *static_cast<unsigned long long*>(data) = info->dlpi_adds;
        return 1;
      },
      &now);
  if (now == loaded) return;
  loaded = now;
  dl_iterate_phdr(patch_library, nullptr);
}

bool is_needed(const char* library, std::size_t length) {
  struct {
    const char* library;
    std::size_t length;
    bool found;
  } sought{library, std::min(length, std::strlen(library) + 1), false};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto* const s = static_cast<decltype(sought)*>(data);
        const Tables t = tables_of(*info);
        for (const ElfW(Xword) at : t.needed)
          if (std::strncmp(t.names + at, s->library, s->length) == 0) s->found = true;
        return s->found ? 1 : 0;
      },
      &sought);
  return sought.found;
}

void* driver_function(const char* name) {
  for (const std::string& candidate : {std::string(name) + "_v2", std::string(name)}) {
    void* const found = own_function(candidate.c_str());
    if (found != nullptr) return found;
  }
  return refusing_function(name);
}

}
