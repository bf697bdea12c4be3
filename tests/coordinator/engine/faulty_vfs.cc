#include "tests/coordinator/engine/faulty_vfs.h"

#include <filesystem>
#include <new>

namespace muster {

// Followed in memory by the real file.
struct FaultyVfs::File {
  sqlite3_file base;  // first: what SQLite sees
  FaultyVfs* owner;
  std::string* path;
  sqlite3_file* real;

  static File* Of(sqlite3_file* file) { return reinterpret_cast<File*>(file); }
  static int Close(sqlite3_file* file) {
    File* f = Of(file);
    delete f->path;
    return f->real->pMethods->xClose(f->real);
  }
  static int Read(sqlite3_file* file, void* to, int size, sqlite3_int64 at) {
    sqlite3_file* real = Of(file)->real;
    return real->pMethods->xRead(real, to, size, at);
  }
  static int Write(sqlite3_file* file, const void* from, int size, sqlite3_int64 at) {
    if (const int code = Of(file)->owner->BeforeWrite(); code != SQLITE_OK) return code;
    sqlite3_file* real = Of(file)->real;
    return real->pMethods->xWrite(real, from, size, at);
  }
  static int Truncate(sqlite3_file* file, sqlite3_int64 size) {
    sqlite3_file* real = Of(file)->real;
    return real->pMethods->xTruncate(real, size);
  }
  static int Sync(sqlite3_file* file, int) { return Of(file)->owner->OnSync(*Of(file)->path); }
  static int FileSize(sqlite3_file* file, sqlite3_int64* size) {
    sqlite3_file* real = Of(file)->real;
    return real->pMethods->xFileSize(real, size);
  }
  static int Lock(sqlite3_file* file, int level) {
    sqlite3_file* real = Of(file)->real;
    return real->pMethods->xLock(real, level);
  }
  static int Unlock(sqlite3_file* file, int level) {
    sqlite3_file* real = Of(file)->real;
    return real->pMethods->xUnlock(real, level);
  }
  static int CheckReservedLock(sqlite3_file* file, int* held) {
    sqlite3_file* real = Of(file)->real;
    return real->pMethods->xCheckReservedLock(real, held);
  }
  static int FileControl(sqlite3_file* file, int op, void* argument) {
    sqlite3_file* real = Of(file)->real;
    return real->pMethods->xFileControl(real, op, argument);
  }
  static int SectorSize(sqlite3_file* file) {
    sqlite3_file* real = Of(file)->real;
    return real->pMethods->xSectorSize(real);
  }
  static int DeviceCharacteristics(sqlite3_file* file) {
    sqlite3_file* real = Of(file)->real;
    return real->pMethods->xDeviceCharacteristics(real);
  }
  // Version 1: without shared memory, which a log in exclusive mode does not need.
  static constexpr sqlite3_io_methods kMethods = {1,
                                                  Close,
                                                  Read,
                                                  Write,
                                                  Truncate,
                                                  Sync,
                                                  FileSize,
                                                  Lock,
                                                  Unlock,
                                                  CheckReservedLock,
                                                  FileControl,
                                                  SectorSize,
                                                  DeviceCharacteristics};
};

FaultyVfs::FaultyVfs()
    : base_(sqlite3_vfs_find(nullptr)),
      name_("faulty-" + std::to_string(reinterpret_cast<uintptr_t>(this))),
      vfs_(*base_) {
  vfs_.szOsFile = static_cast<int>(sizeof(File)) + base_->szOsFile;
  vfs_.pNext = nullptr;
  vfs_.zName = name_.c_str();
  vfs_.pAppData = this;
  vfs_.xOpen = &FaultyVfs::Open;
  vfs_.xDelete = &FaultyVfs::Delete;
  sqlite3_vfs_register(&vfs_, /*makeDflt=*/0);
}

FaultyVfs::~FaultyVfs() { sqlite3_vfs_unregister(&vfs_); }

int FaultyVfs::Open(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* out) {
  auto* self = static_cast<FaultyVfs*>(vfs->pAppData);
  File* f = new (file) File{};
  f->real = reinterpret_cast<sqlite3_file*>(f + 1);
  const int code = self->base_->xOpen(self->base_, path, f->real, flags, out);
  if (code != SQLITE_OK) return code;  // without methods it is not closed
  f->owner = self;
  f->path = new std::string(path == nullptr ? "" : path);
  f->base.pMethods = &File::kMethods;
  return SQLITE_OK;
}

int FaultyVfs::Delete(sqlite3_vfs* vfs, const char* path, int sync_folder) {
  auto* self = static_cast<FaultyVfs*>(vfs->pAppData);
  if (!self->synced_.empty()) {  // SQLite syncs the folder where it matters
    std::filesystem::remove(std::filesystem::path(self->synced_) /
                            std::filesystem::path(path).filename());
  }
  return self->base_->xDelete(self->base_, path, sync_folder);
}

int FaultyVfs::BeforeWrite() {
  if (!full_while_.empty() && std::filesystem::exists(full_while_)) return SQLITE_FULL;
  if (writes_left_ < 0 || writes_left_-- > 0) return SQLITE_OK;
  failed_ = true;
  return write_code_;
}

int FaultyVfs::OnSync(const std::string& path) {
  if (fail_sync_) {
    fail_sync_ = false;
    failed_ = true;
    return SQLITE_IOERR_FSYNC;
  }
  if (!synced_.empty()) {
    const std::filesystem::path from(path);
    std::filesystem::copy_file(from, std::filesystem::path(synced_) / from.filename(),
                               std::filesystem::copy_options::overwrite_existing);
  }
  return SQLITE_OK;
}

}  // namespace muster
