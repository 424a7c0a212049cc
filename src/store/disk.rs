//! What the slots need of a disk, and the real one.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::path::Path;

/// What stands at a path; symbolic links are not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Missing,
    File,
    /// Neither, in words.
    Other(&'static str),
}

/// The operations whose order and durability the slots depend on. A simulated disk takes the place of the real one to
/// see what a power cut leaves.
pub(super) trait Disk: Send + 'static {
    /// An open file. Its lock ends and its descriptor closes when it is dropped.
    type File: Debug + Send;

    fn node(&self, path: &Path) -> io::Result<Node>;
    /// Whether there is a directory; symbolic links are followed.
    fn is_dir(&self, path: &Path) -> io::Result<bool>;
    /// Makes one directory, for its owner only.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a name durable, or the lack of it.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Opens and locks a file, which is made where there is none. `None` where another holds the lock.
    fn lock(&self, path: &Path) -> io::Result<Option<Self::File>>;
    /// Lets go of a lock before its file is closed: a process that is being started holds what its parent has open until it
    /// runs its own program, and the lock as long.
    fn unlock(&self, _file: &Self::File) {}
    /// Opens a file to read and write.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Makes a new file, for its owner only.
    fn create(&self, path: &Path) -> io::Result<Self::File>;
    /// Whether the path still leads to this file.
    fn is_at(&self, file: &Self::File, path: &Path) -> io::Result<bool>;
    fn len(&self, file: &Self::File) -> io::Result<u64>;
    fn read_at(&self, file: &Self::File, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    fn write_at(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the contents durable, of a file whose size did not change.
    fn sync_data(&self, file: &Self::File) -> io::Result<()>;
    /// Makes contents and size durable.
    fn sync_all(&self, file: &Self::File) -> io::Result<()>;
    /// Gives a file another name, in place of what had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The disk of the system.
#[derive(Debug)]
pub(super) struct RealDisk;

impl Disk for RealDisk {
    type File = File;

    fn node(&self, path: &Path) -> io::Result<Node> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_file() => Ok(Node::File),
            Ok(found) if found.is_dir() => Ok(Node::Other("a directory")),
            Ok(found) if found.is_symlink() => Ok(Node::Other("a symbolic link")),
            Ok(_) => Ok(Node::Other("a device, pipe or socket")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Node::Missing),
            Err(error) => Err(error),
        }
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        match fs::metadata(path) {
            Ok(found) => Ok(found.is_dir()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        #[cfg_attr(not(unix), expect(unused_mut, reason = "only unix has modes"))]
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // Elsewhere a directory cannot be opened as a file, and the rename is as durable as the system makes it.
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    fn lock(&self, path: &Path) -> io::Result<Option<File>> {
        let file = private().read(true).write(true).create(true).truncate(false).open(path)?;
        match fs2::FileExt::try_lock_exclusive(&file) {
            Ok(()) => Ok(Some(file)),
            Err(error) if error.raw_os_error() == fs2::lock_contended_error().raw_os_error() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn unlock(&self, file: &File) {
        // If that fails, the lock ends when the last descriptor is closed.
        let _ = fs2::FileExt::unlock(file);
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(path)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        private().read(true).write(true).create_new(true).open(path)
    }

    #[cfg(unix)]
    fn is_at(&self, file: &File, path: &Path) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let held = file.metadata()?;
        match fs::symlink_metadata(path) {
            Ok(there) => Ok((held.dev(), held.ino()) == (there.dev(), there.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    #[cfg(not(unix))]
    fn is_at(&self, _: &File, path: &Path) -> io::Result<bool> {
        self.node(path).map(|node| node == Node::File)
    }

    fn len(&self, file: &File) -> io::Result<u64> {
        file.metadata().map(|found| found.len())
    }

    #[cfg(unix)]
    fn read_at(&self, file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
    }

    #[cfg(not(unix))]
    fn read_at(&self, mut file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        use io::{Read, Seek};
        file.seek(io::SeekFrom::Start(offset))?;
        file.read_exact(bytes)
    }

    #[cfg(unix)]
    fn write_at(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
    }

    #[cfg(not(unix))]
    fn write_at(&self, mut file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        use io::{Seek, Write};
        file.seek(io::SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

/// Options for files that nobody but their owner reads.
fn private() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only unix has modes"))]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
