package io.tidemark.storage;

import java.io.IOException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;
import software.amazon.awssdk.services.s3.model.S3Object;

/**
 * Objects of an S3 store by name, from one of them on.
 *
 * <p>Hadoop's interface lists whole folders only. The store itself starts wherever it is told to, and gives a
 * thousand names a request: the newest part of a long log is one request instead of a hundred.
 */
final class ObjectListing {
  private ObjectListing() {}

  /** The objects beside this one whose names are not less; in order, and without what lies in folders there. */
  static FileStatus[] from(FileSystem fs, Path path) throws IOException {
    S3AFileSystem s3a = (S3AFileSystem) fs;
    String folder = s3a.pathToKey(path.getParent()) + "/";
    String name = path.getName();
    ListObjectsV2Request request =
        ListObjectsV2Request.builder()
            .bucket(s3a.getBucket())
            .prefix(folder)
            .delimiter("/")
            // The store begins behind this key: no name lies between it and the one that is wanted.
            .startAfter(folder + name.substring(0, name.length() - 1) + before(name.charAt(name.length() - 1)))
            .build();
    try {
      return s3a.getS3AInternals().getAmazonS3Client("list a log").listObjectsV2Paginator(request).stream()
          .flatMap(page -> page.contents().stream())
          .filter(object -> object.key().length() > folder.length())
          .map(object -> status(object, path.getParent(), folder))
          .toArray(FileStatus[]::new);
    } catch (SdkException e) {
      throw new IOException(path.getParent() + ": cannot be listed: " + e.getMessage(), e);
    }
  }

  /** The greatest ending that is less than this character; names of a log's files are plain ASCII. */
  private static String before(char last) {
    return (char) (last - 1) + "~";
  }

  private static FileStatus status(S3Object object, Path folder, String prefix) {
    Path path = new Path(folder, object.key().substring(prefix.length()));
    return new FileStatus(object.size(), false, 1, 0, object.lastModified().toEpochMilli(), path);
  }
}
