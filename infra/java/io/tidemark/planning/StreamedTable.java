package io.tidemark.planning;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.NoSuchElementException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.sources.DeltaDataSource;
import org.apache.spark.sql.delta.sources.DeltaSource;
import org.apache.spark.sql.delta.sources.DeltaSourceOffset;
import org.apache.spark.sql.delta.sources.IndexedFile;
import org.apache.spark.sql.delta.storage.ClosableIterator;
import org.apache.spark.sql.delta.util.FileNames;
import org.apache.spark.sql.execution.streaming.Source;
import org.apache.spark.sql.sources.StreamSourceProvider;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * A Delta table as a stream, whose end is found in the names of its log.
 *
 * <p>Delta's own source goes on beyond the newest commit: it reads the whole log anew, by a query of Spark's, because a
 * commit could be known to a catalog that is not in the log yet. Tables of a lake have no such catalog. Of a stream that
 * keeps up with its table this was a query in each batch. Whatever else there is to a stream is Delta's.
 */
public class StreamedTable implements StreamSourceProvider {
  private final DeltaDataSource delta = new DeltaDataSource();

  @Override
  public Tuple2<String, StructType> sourceSchema(
      SQLContext context,
      Option<StructType> schema,
      String provider,
      scala.collection.immutable.Map<String, String> options) {
    return delta.sourceSchema(context, schema, provider, options);
  }

  @Override
  public Source createSource(
      SQLContext context,
      String metadataPath,
      Option<StructType> schema,
      String provider,
      scala.collection.immutable.Map<String, String> options) {
    DeltaSource source = (DeltaSource) delta.createSource(context, metadataPath, schema, provider, options);
    Snapshot known = source.deltaLog().unsafeVolatileSnapshot();
    boolean hasCatalog = known.isCatalogOwned() || known.tableCommitCoordinatorClientOpt().isDefined();
    return hasCatalog ? source : of(source, options);
  }

  /** The source that takes the place of Delta's. */
  Source of(DeltaSource source, scala.collection.immutable.Map<String, String> options) {
    return new Streamed(source);
  }

  static class Streamed extends DeltaSource {
    /** The newest version that a listing has shown. */
    private long newest = -1;

    Streamed(DeltaSource source) {
      super(
          source.spark(),
          source.deltaLog(),
          source.catalogTableOpt(),
          source.options(),
          source.snapshotAtSourceInit(),
          source.metadataPath(),
          source.metadataTrackingLog(),
          source.filters());
    }

    @Override
    public ClosableIterator<IndexedFile> getFileChanges(
        long version, long index, boolean isSnapshot, Option<DeltaSourceOffset> end, boolean verifies) {
      boolean isAtCommit = !isSnapshot && index == DeltaSourceOffset.BASE_INDEX();
      return isAtCommit
          ? new UpToEnd(null, version, end, verifies)
          : new UpToEnd(super.getFileChanges(version, index, isSnapshot, end, verifies), -1, end, verifies);
    }

    /** Whether the log has this version, or a later one: of a gap in the log, Delta tells. */
    private boolean goesOnAt(long version) {
      if (version > newest) {
        // One request, however many commits there are.
        Iterator<FileStatus> files = deltaLog().listFrom(version);
        while (files.hasNext()) {
          FileStatus file = files.next();
          if (FileNames.isDeltaFile(file)) newest = Math.max(newest, FileNames.deltaVersion(file));
        }
      }
      return version <= newest;
    }

    /** Delta's files, as long as there are commits: to ask for more would have it look for them elsewhere. */
    private final class UpToEnd extends AbstractIterator<IndexedFile> implements ClosableIterator<IndexedFile> {
      private final Option<DeltaSourceOffset> end;
      private final boolean verifies;

      /** Of the commits that a listing of Delta's has shown; none, before there has been one. */
      private ClosableIterator<IndexedFile> files;

      /** The newest version that had been seen when Delta listed the log: of a later one it may know nothing. */
      private long listed;

      /** The version whose commit comes next; -1: the files of one are not over. */
      private long next;

      UpToEnd(ClosableIterator<IndexedFile> files, long next, Option<DeltaSourceOffset> end, boolean verifies) {
        this.files = files;
        this.listed = files == null ? -1 : newest;
        this.next = next;
        this.end = end;
        this.verifies = verifies;
      }

      @Override
      public boolean hasNext() {
        if (next >= 0) {
          if (isBeyond(next) || !goesOnAt(next)) return false;
          if (files == null || next > listed) openAt(next);
          next = -1;
        }
        return files.hasNext();
      }

      private void openAt(long version) {
        close();
        listed = newest;
        files = Streamed.super.getFileChanges(version, DeltaSourceOffset.BASE_INDEX(), false, end, verifies);
      }

      /** Whether no file of a commit belongs to what is asked for. */
      private boolean isBeyond(long version) {
        if (end.isEmpty()) return false;
        DeltaSourceOffset last = end.get();
        boolean isBegin = last.reservoirVersion() == version && last.index() == DeltaSourceOffset.BASE_INDEX();
        return last.reservoirVersion() < version || isBegin;
      }

      @Override
      public IndexedFile next() {
        if (!hasNext()) throw new NoSuchElementException();
        IndexedFile file = files.next();
        // After the files of a commit comes a mark that is none.
        if (file.index() == DeltaSourceOffset.END_INDEX()) next = file.version() + 1;
        return file;
      }

      @Override
      public void close() {
        try {
          if (files != null) files.close();
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
      }
    }
  }
}
